"""gRPC: the seam between API processes and the engine's process, and the public services. No jax."""
