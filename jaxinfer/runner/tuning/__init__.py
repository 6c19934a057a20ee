"""Choices of kernels: which backend computes attention, products and experts, and why."""
