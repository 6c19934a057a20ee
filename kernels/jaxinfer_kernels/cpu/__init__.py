"""Kernels for CPUs: C++ behind `jax.ffi`, in a library that an install builds where it finds a compiler."""
