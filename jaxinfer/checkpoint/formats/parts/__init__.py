"""Sources of the parts of a quantised matrix: codes, scales and zeros as they lie in tensors. No jax."""
