"""Block sizes of the GPU matmul kernels: a small rule, from shapes alone."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer_kernels.dequantise import is_rounded
from jaxinfer_kernels.matmul_blocks import value_bytes

WARPGROUP_ROWS = 64
"""Outputs that one warpgroup's matrix instruction makes at once."""

_PROGRAMS = 132
_SHARED_BYTES = 220 << 10
_MOST_STAGES = 8
_MOST_SPLITS = 8
_LEAST_SPLIT = 512
_FEW_WARPGROUPS = 0.8
"""Guessed, not measured: the rate at which half as many warpgroups read weights."""


@dataclass(frozen=True)
class GpuMatmulBlocks:
    """Tile sizes of one matmul. Weights are the left side of the matrix instruction, x is the right one.

    rows: rows of x a tile, a multiple of 8, at most 256.
    columns: outputs a tile, a multiple of 64 for each of its warpgroups.
    warpgroups: warpgroups that multiply; one more loads tiles.
    depth: values of K a stage. stages: stages in flight at once.
    splits: parts of K that are summed separately, to get more tiles.
    programs: thread blocks, which take tiles in turn: as many as an H100 or H200 has multiprocessors.
    """

    rows: int
    columns: int
    depth: int
    warpgroups: int = 2
    stages: int = 4
    splits: int = 1
    programs: int = _PROGRAMS

    def __post_init__(self) -> None:
        for name in ("stages", "splits", "programs", "warpgroups"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.rows % 8 or not 8 <= self.rows <= 256:
            raise ValueError(f"rows must be a multiple of 8 from 8 to 256, not {self.rows}")
        if self.columns < 1 or self.columns % (WARPGROUP_ROWS * self.warpgroups):
            raise ValueError(f"columns must be a multiple of {WARPGROUP_ROWS * self.warpgroups}, not {self.columns}")
        if self.depth not in (64, 128):
            raise ValueError(f"depth must be 64 or 128, not {self.depth}")


def gpu_matmul_blocks(
    rows: int,
    columns: int,
    depth: int,
    weight_dtype: jnp.dtype,
    experts: int,
    group: int,
    out_bytes: int = 2,
    x_dtype: Any = jnp.bfloat16,
) -> GpuMatmulBlocks:
    """Sizes for x [rows, depth] and weights [experts, columns, depth], `group` values of K to a scale.
    out_bytes: of a value of the result, tiles of which lie in shared memory too.

    Few rows: four warpgroups, which hide each other's latency, of 64 outputs each, and more than 100 KiB of weights on
    their way. More rows: two warpgroups, whose sums take more registers; 256 outputs a tile, so that x is read less
    often, but half as many for many rows where scales belong to groups, or x is e4m3, as two sums live in registers
    then, or where results are float32, which leave too little shared memory; for groups of 16, whose sums come one
    after another in registers of their own, half as many rows too.
    """
    most = 128 if group >= 32 else 64
    tile, item, x_bytes = _tile_rows(rows, experts, most), value_bytes(weight_dtype), jnp.dtype(x_dtype).itemsize
    two_sums = group < depth or x_dtype == jnp.float8_e4m3fn
    wide = (128,) if 2 * tile > most and (two_sums or out_bytes > 2) else (256, 128)
    sizes = [size for size in (*wide, WARPGROUP_ROWS) if columns % size == 0] or [WARPGROUP_ROWS]
    chunk = _chunk(depth, group, weight_dtype)
    outputs, splits = sizes[0], 1
    if experts == 1 and rows <= 64:
        unit = max(chunk, group if group < depth else 0)
        outputs, splits = _spread(rows, columns, depth, item, sizes, unit)
    room = _SHARED_BYTES - outputs * tile * (out_bytes if splits == 1 else 4)
    stage = _stage_bytes(chunk, outputs, item, tile, x_bytes)
    if chunk == 128 and (room < 4 * stage or (tile > 16 and group < chunk)):
        chunk, stage = 64, stage // 2  # for more stages, or for fewer registers
    stages = min(_MOST_STAGES, room // stage)
    warpgroups = min(_warpgroups(tile), outputs // WARPGROUP_ROWS)
    return GpuMatmulBlocks(tile, outputs, chunk, warpgroups, stages, splits)


def check_gpu_matmul(x: jax.Array, weights: jax.Array, groups: int, blocks: GpuMatmulBlocks) -> None:
    """Raises ValueError for what `mosaic_gpu` does not multiply, or not in such blocks.

    x: [T, K]. weights: [..., N, K]. groups: of K, each with a scale; 1 for weights that have none.
    """
    (columns, depth), group = weights.shape[-2:], x.shape[1] // groups
    if (x.dtype != jnp.bfloat16 and not is_rounded(x)) or weights.dtype == jnp.float32:
        raise ValueError(f"x and plain weights must be bfloat16 for mosaic_gpu, not {x.dtype} and {weights.dtype}")
    if columns % WARPGROUP_ROWS or depth % 64:
        raise ValueError(f"N and K must be multiples of 64 for mosaic_gpu, not {columns} and {depth}")
    if group not in (16, 32) and group % 64:
        raise ValueError(f"scales must have groups of 16, of 32 or of a multiple of 64 for mosaic_gpu, not of {group}")
    small, unit = sorted((blocks.depth, group)) if groups > 1 else (blocks.depth, blocks.depth)
    if columns % blocks.columns or depth % (blocks.splits * unit) or unit % small:
        raise ValueError(f"N {columns} and K {depth} with groups of {group} cannot be cut as block_sizes say: {blocks}")


def _tile_rows(rows: int, experts: int, most: int) -> int:
    """Rows a tile: of one matrix as few tiles of about one size as there may be; of experts, room for twice the mean.

    Up to 7 rows of a tile may come before an expert's first.
    """
    if experts > 1:
        return min(max(1 << (2 * rows // experts).bit_length(), 16), most)
    tiles = -(-rows // most)
    return -(-rows // tiles // 8) * 8


def _warpgroups(tile_rows: int) -> int:
    return 4 if tile_rows <= 16 else 2


def _chunk(depth: int, group: int, weight_dtype: jnp.dtype) -> int:
    fits = depth % 128 == 0 and (group % 128 == 0 or 128 % group == 0)
    return 128 if fits and value_bytes(weight_dtype) < 2 else 64


def _stage_bytes(chunk: int, outputs: int, item: float, rows: int, x_bytes: int) -> int:
    return int(chunk * (outputs * item + rows * x_bytes))


def _spread(rows: int, columns: int, depth: int, item: float, sizes: list[int], unit: int) -> tuple[int, int]:
    """Outputs a tile, and parts of K: so that tiles fill the multiprocessors, for few sums written and read again."""
    parts = [
        s for s in range(1, _MOST_SPLITS + 1) if s == 1 or (depth % (s * unit) == 0 and depth // s >= _LEAST_SPLIT)
    ]

    def cost(choice: tuple[int, int]) -> float:
        outputs, splits = choice
        work = -(-columns // outputs) * splits
        filled = work / (-(-work // _PROGRAMS) * _PROGRAMS)
        if outputs // WARPGROUP_ROWS < _warpgroups(rows):
            filled *= _FEW_WARPGROUPS
        return columns * depth * item / filled + (8 * rows * columns * splits if splits > 1 else 0)

    return min(((size, splits) for size in sizes for splits in parts), key=cost)
