"""Decoders, and what a model folder declares of them. Importing this package, `config` or `registry` imports no jax."""
