"""Compiles kernels and programs for TPUs and GPUs on a machine that has none, and looks at what came out.

`python -m jaxinfer_kernels.check` does so for every kernel of this package; `command.main` for cases of others.
"""
