"""Parts of `benchmarks/gpu_suite.py`; each runs in a process of its own."""
