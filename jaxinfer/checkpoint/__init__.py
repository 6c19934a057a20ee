"""Model folders: where they are found, what their files say, and how their tensors are read. No jax."""
