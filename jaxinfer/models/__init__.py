"""Decoders, and the checkpoints that they are loaded from."""
