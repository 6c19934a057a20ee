"""Pallas kernels for NVIDIA GPUs of the Hopper kind (H100, H200), on Mosaic GPU."""
