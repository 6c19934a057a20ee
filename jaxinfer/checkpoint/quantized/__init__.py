"""Readers of weights that are quantised in a checkpoint: codes, scales and zeros as sources. No jax."""
