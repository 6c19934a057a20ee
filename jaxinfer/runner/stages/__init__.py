"""Stages on their devices. A pipeline has several, each with some of the layers; every other engine has one."""
