"""Parts of `benchmarks/overlap.py`: the simulated engine, the bare loop, the client."""
