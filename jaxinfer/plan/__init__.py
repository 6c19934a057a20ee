"""Cost of a model on a mesh that need not be present: memory, time of a step, and its bottleneck."""
