"""The backends of both matmuls."""

from jaxinfer_kernels.available import unavailable
from jaxinfer_kernels.gpu.matmul_blocks import GpuMatmulBlocks
from jaxinfer_kernels.matmul_blocks import MatmulBlocks

BACKENDS = ("xla", "mosaic_tpu", "mosaic_gpu", "native")
"""Plain JAX; Pallas kernels for TPU and for NVIDIA GPUs of the Hopper kind; and C++ for CPUs."""

_BLOCKS = {"mosaic_tpu": MatmulBlocks, "mosaic_gpu": GpuMatmulBlocks}


def check_backend(backend: str, block_sizes: MatmulBlocks | GpuMatmulBlocks | None) -> None:
    """Raises ValueError for a backend that is unknown or that this jax does not have, and for another's blocks."""
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is unknown; known are {', '.join(BACKENDS)}")
    if reason := unavailable(backend):
        raise ValueError(reason)
    if block_sizes is None:
        return
    if backend not in _BLOCKS:
        raise ValueError(f"block_sizes belong to mosaic_tpu and mosaic_gpu; {backend} takes none")
    if not isinstance(block_sizes, _BLOCKS[backend]):
        raise ValueError(
            f"block_sizes of backend {backend} must be {_BLOCKS[backend].__name__}, not {type(block_sizes).__name__}"
        )
