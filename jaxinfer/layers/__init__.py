"""Flax NNX layers; each computes on tokens [T, ...] and knows nothing of requests."""
