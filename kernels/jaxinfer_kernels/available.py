"""Find the backends that can run in this environment at all."""

import jax

from jaxinfer_kernels.cpu.loading import library

_LEAST, _FIRST_UNKNOWN = (0, 11), (0, 13)
"""Versions of JAX whose Mosaic GPU lowers every kernel, as CI checks (`scripts/check_lowering.py`)."""


def unavailable(backend: str) -> str | None:
    """Why `backend` cannot run in this environment, whatever the device; None where it can."""
    if backend == "native":
        return library().reason or None
    if backend != "mosaic_gpu" or _LEAST <= jax.__version_info__ < _FIRST_UNKNOWN:
        return None
    if jax.__version_info__ < _LEAST:
        return f"mosaic_gpu needs jax 0.11 or newer, and thus Python 3.12; this is jax {jax.__version__}"
    return (
        f"mosaic_gpu is not tried with jax {jax.__version__}, whose compiler may search for layouts without end; "
        "jax 0.11 and 0.12 are known to work"
    )
