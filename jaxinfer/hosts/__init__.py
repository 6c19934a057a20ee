"""Several hosts as one engine: which host this is, what all must agree on, the stream of calls, who is lost. No jax."""
