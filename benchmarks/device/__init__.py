"""Parts of `benchmarks/device_suite.py`; each runs in a process of its own."""
