"""Formats of quantised weights in checkpoints: a file each, with what config.json says of it and its tensors."""
