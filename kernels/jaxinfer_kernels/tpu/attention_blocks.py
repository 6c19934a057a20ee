"""Block sizes of the TPU attention kernel: a small rule from shapes, and what was measured to be better."""

from dataclasses import dataclass

import jax.numpy as jnp

_TILE_BYTES = 1 << 20
_BLOCK_BYTES = 4 << 20
_TWO_CORES = ("TPU v4", "TPU v5", "TPU v5p")
"""Kinds of device with two TensorCores. A v5p says "TPU v5", a v5e "TPU v5 lite"; those of a v7x are a device each."""
QUERY_STEP = 16
"""Tokens that a long row's place among the queries is rounded up to: the rows of a tile of bfloat16."""
PIECE_ROWS, PIECE_KEYS = 512, 512
"""Rows of a long row's block, and keys of a tile, that are multiplied at once, where there are so many."""
LEAST_KEYS = 256
"""Keys down to which those are halved where a row ends: 128 take as long, as the schedules say."""


@dataclass(frozen=True)
class TpuBlocks:
    """Tile sizes of one attention call.

    keys: keys a tile, rounded up to whole pages. query_tokens: tokens of a long row at once, 16 times a power of two.
    cores: TensorCores that share a call (2 on v4 and v5p, whose cores are one device; else 1). long_keys: keys a tile
    of a long row; 0: as `keys`.
    """

    keys: int
    query_tokens: int
    cores: int = 1
    long_keys: int = 0

    def __post_init__(self) -> None:
        for name in ("keys", "cores"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.long_keys < 0:
            raise ValueError(f"long_keys must be at least 0, not {self.long_keys}")
        steps = self.query_tokens // QUERY_STEP
        if steps < 1 or steps & (steps - 1) or self.query_tokens % QUERY_STEP:
            raise ValueError(f"query_tokens must be {QUERY_STEP} times a power of two, not {self.query_tokens}")


MEASURED: dict[tuple[int, int, int, str], TpuBlocks] = {}
"""Sizes found to be faster than the rule's, by KV heads, group, bytes of a key and value of a head, and kind of device.
It is empty: nobody has run the kernel on a TPU yet."""


def tpu_blocks(kv_heads: int, group: int, row_bytes: int, device: str = "") -> TpuBlocks:
    """Sizes for so many KV heads, query heads a KV head, and bytes a token takes of one head, K and V together.

    device: its `device_kind`; without one, sizes for one core.
    A tile of 1 MiB takes longer to arrive (0.3 µs at 3.3 TB/s, 1.3 at 0.8) than its copies take to start, and two of
    them leave most of VMEM free. A long row's tile has at least the keys that are multiplied at once, and its block as
    many tokens as keep the queries of all heads, with room for results, within 4 MiB.
    """
    if (found := MEASURED.get((kv_heads, group, row_bytes, device))) is not None:
        return found
    keys = 128
    while keys < 1024 and 2 * keys * kv_heads * row_bytes <= _TILE_BYTES:
        keys *= 2
    tokens = QUERY_STEP
    while tokens < 256 and 2 * tokens * group * kv_heads * row_bytes <= _BLOCK_BYTES:
        tokens *= 2
    return TpuBlocks(keys, tokens, 2 if device in _TWO_CORES else 1, max(keys, PIECE_KEYS))


def check_tpu_page(kind: jnp.dtype, page: int) -> None:
    """Raises ValueError for pages of so many tokens that the kernel cannot read and write."""
    rows = 32 // kind.itemsize
    if page < rows // 4 or (page & (page - 1) if page < rows else page % rows):
        raise ValueError(
            f"pages of {kind} must hold {rows // 4}, {rows // 2} or a multiple of {rows} tokens for mosaic_tpu, "
            f"not {page}"
        )
