"""Parts of `benchmarks/cpu_peers.py`."""
