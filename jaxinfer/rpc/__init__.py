"""gRPC: the seam between API processes and the engine's process. No jax."""
