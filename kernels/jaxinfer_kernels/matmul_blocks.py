"""Block sizes of the TPU matmul kernels: a small rule, from shapes alone."""

from dataclasses import dataclass

import jax.numpy as jnp

LANES = 128
_SCALE_BYTES = 4
_SHORT_GROUP = 32
_HALF_BYTES = (jnp.dtype(jnp.int4), jnp.dtype(jnp.float4_e2m1fn))
_DECODE_ROWS = 256
_DECODE_WEIGHT_BYTES = 4 << 20
_PREFILL_WEIGHT_BYTES = 8 << 20
_ROW_BYTES = 8 << 20


@dataclass(frozen=True)
class MatmulBlocks:
    """Block sizes of one matmul. A block takes all of K: weights are read once for all row blocks of a column block.

    rows: rows of x a block, a multiple of 16, or all of them.
    columns: outputs a block, a multiple of 128, or all of them.
    """

    rows: int
    columns: int

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


def matmul_blocks(rows: int, columns: int, depth: int, x_bytes: int, weight_bytes: float, groups: int) -> MatmulBlocks:
    """Sizes for x [rows, depth] and weights [groups, columns, depth] of so many bytes a value.

    Weight blocks of 4 MiB (8 in prefill) take longer to arrive than a grid step takes to start on every chip, and two
    of them fit beside the rest in 64 MiB of VMEM. Up to 128 rows of bfloat16 take no longer in the MXU than their
    weights take to arrive; more rows a block pay only where groups are long enough to fill them.
    """
    limit = _DECODE_WEIGHT_BYTES if rows <= _DECODE_ROWS else _PREFILL_WEIGHT_BYTES
    column_block = _column_block(columns, int(depth * weight_bytes), limit)
    return MatmulBlocks(_row_block(rows, depth * x_bytes, groups), column_block)


def value_bytes(dtype: jnp.dtype) -> float:
    """Bytes a value takes in HBM and VMEM; half a one for int4 and e2m1."""
    return 0.5 if dtype in _HALF_BYTES else jnp.dtype(dtype).itemsize


def arriving_bytes(dtype: jnp.dtype, group: int) -> float:
    """Bytes a value of a block takes, with its share of a float32 scale where short groups make that much of it."""
    return value_bytes(dtype) + (_SCALE_BYTES / group if group < _SHORT_GROUP else 0)


def _row_block(rows: int, row_bytes: int, groups: int) -> int:
    mean = rows // groups
    block = 512 if mean > 1024 else 256 if mean > 256 else 128
    while block > LANES and block * row_bytes > _ROW_BYTES:
        block //= 2
    return min(block, rows)


def _column_block(columns: int, column_bytes: int, limit: int) -> int:
    if columns <= LANES:
        return columns
    most = min(max(limit // max(column_bytes, 1) // LANES, 1), 8, columns // LANES)
    whole = [count for count in range(1, most + 1) if columns % (count * LANES) == 0]
    return (whole[-1] if whole and 2 * whole[-1] > most else most) * LANES
