"""Processes of `jaxinfer serve`: the programs that run in them, and how they are started, watched and ended."""
