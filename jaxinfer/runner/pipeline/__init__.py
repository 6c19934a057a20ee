"""Pipelines: each stage has some of the layers, programs of its own, and devices of its own."""
