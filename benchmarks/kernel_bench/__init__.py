"""Parts of `benchmarks/kernels.py`: cases, their bytes and FLOPs, programs, timing, the plot."""
