"""Block sizes of the TPU attention kernel: a small rule from shapes, and what was measured to be better."""

from dataclasses import dataclass

_TILE_BYTES = 1 << 20
_SCORE_BYTES = 1 << 20
_TWO_CORES = ("TPU v4", "TPU v5", "TPU v5p")
"""Kinds of device with two TensorCores. A v5p says "TPU v5", a v5e "TPU v5 lite"; those of a v7x are a device each."""
QUERY_STEP = 16
"""Tokens that a long row's place among the queries is rounded up to: the rows of a tile of bfloat16."""


@dataclass(frozen=True)
class TpuBlocks:
    """How one attention call is cut.

    keys: keys a tile, rounded up to whole pages. query_tokens: tokens of a long row at once, 16 times a power of two.
    cores: TensorCores that share a call (2 on v4 and v5p, whose cores are one device; else 1).
    """

    keys: int
    query_tokens: int
    cores: int = 1

    def __post_init__(self) -> None:
        for name in ("keys", "cores"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        steps = self.query_tokens // QUERY_STEP
        if steps < 1 or steps & (steps - 1) or self.query_tokens % QUERY_STEP:
            raise ValueError(f"query_tokens must be {QUERY_STEP} times a power of two, not {self.query_tokens}")


MEASURED: dict[tuple[int, int, int, str], TpuBlocks] = {}
"""By (KV heads, group, bytes of a key and value of a head, kind of device): sizes found better than the rule's. None
were: nobody has run the kernel on a TPU yet."""


def tpu_blocks(kv_heads: int, group: int, row_bytes: int, device: str = "") -> TpuBlocks:
    """Sizes for so many KV heads, query heads a KV head, and bytes a token takes of one head, K and V together.

    device: its `device_kind`; without one, sizes for one core.
    A tile of 1 MiB takes longer to arrive (0.3 µs at 3.3 TB/s, 1.3 at 0.8) than its copies take to start, and two of
    them leave most of VMEM free. A long row's block is as large as its scores of one head, in float32, fit 1 MiB.
    """
    if (found := MEASURED.get((kv_heads, group, row_bytes, device))) is not None:
        return found
    keys = 128
    while keys < 1024 and 2 * keys * kv_heads * row_bytes <= _TILE_BYTES:
        keys *= 2
    tokens = QUERY_STEP
    while tokens < 256 and 2 * tokens * group * keys * 4 <= _SCORE_BYTES:
        tokens *= 2
    return TpuBlocks(keys, tokens, cores=2 if device in _TWO_CORES else 1)
