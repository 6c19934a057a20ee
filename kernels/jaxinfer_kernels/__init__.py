"""Attention over paged KV for JAX, and plain-JAX twins of every kernel. Knows arrays, not requests."""

from jaxinfer_kernels.attention import ragged_latent_attention, ragged_paged_attention
from jaxinfer_kernels.available import unavailable
from jaxinfer_kernels.blocks import BlockSizes, default_block_sizes
from jaxinfer_kernels.gpu.attention_blocks import GpuBlocks, gpu_blocks
from jaxinfer_kernels.layouts import KVLayout
from jaxinfer_kernels.pages import copy_pages
from jaxinfer_kernels.rows import RaggedRows
from jaxinfer_kernels.tpu.attention_blocks import TpuBlocks, tpu_blocks

__all__ = [
    "BlockSizes",
    "GpuBlocks",
    "KVLayout",
    "RaggedRows",
    "TpuBlocks",
    "copy_pages",
    "default_block_sizes",
    "gpu_blocks",
    "ragged_latent_attention",
    "ragged_paged_attention",
    "tpu_blocks",
    "unavailable",
]
