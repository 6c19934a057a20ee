"""Which backends this environment can run at all."""

import jax


def unavailable(backend: str) -> str | None:
    """Why `backend` cannot run in this environment, whatever the device; None where it can."""
    if backend == "mosaic_gpu" and jax.__version_info__ < (0, 11):
        return f"mosaic_gpu needs jax 0.11 or newer, and thus Python 3.12; this is jax {jax.__version__}"
    return None
