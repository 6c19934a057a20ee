"""What `benchmarks/kernels.py` is made of: cases, their bytes and FLOPs, programs, timing, the plot."""
