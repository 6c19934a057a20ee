"""One kernel behind both GPU matmuls: weights stream through shared memory, tile after tile.

Each thread block takes tasks in turn: a tile of outputs of an item of rows. One warpgroup brings stages of weights and
of x by TMA, several ahead, across tasks; the others multiply. Weights are the left side of wgmma, which has 64 rows at
least, and x is the right one, which may have as few as 8: the product is transposed on its way out.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.gpu.group_items import ALIGNED, GroupItems
from jaxinfer_kernels.gpu.matmul_blocks import GpuMatmulBlocks
from jaxinfer_kernels.gpu.tile_product import Sides, Stages, Tile, tile_product
from jaxinfer_kernels.gpu.transfers import store_plain

_PANEL = 8
"""Tiles of outputs, at most, that tasks of neighbouring items go through before the next ones."""

_REGISTERS = 40, 232
"""Registers of a thread that loads, and of one that multiplies, if two warpgroups multiply; all threads share 65536."""


class Hbm(NamedTuple):
    """Refs of the arguments and of the result [splits, rows, N]."""

    items: GroupItems
    x: Any
    weights: Any
    sides: Sides
    out: Any


class Task(NamedTuple):
    """A tile of outputs, int32 each: an item of rows, the tile's first column, and the part of K."""

    item: Any
    column: Any
    split: Any


def stream_matmul(
    x: jax.Array,
    weights: jax.Array,
    sides: Sides,
    items: GroupItems,
    rows: int,
    out_dtype: jnp.dtype,
    blocks: GpuMatmulBlocks,
) -> jax.Array:
    """Rows of each item times the weights of its group, [rows, N]; rows of no group are 0.

    x: [held, K] bfloat16. weights: [E, N, K], bfloat16, int8, int4, e4m3 or e2m1, N a multiple of blocks.columns, K of
    blocks.depth * blocks.splits. Parts of K are summed up behind the kernel, in float32.
    """
    made = jnp.dtype(out_dtype) if blocks.splits == 1 else jnp.dtype(jnp.float32)

    def stream_weights(*refs: Any, **scratch: Any) -> None:
        _kernel(*refs, **scratch, blocks=blocks)

    kernel = plgpu.kernel(
        stream_weights,
        out_type=jax.ShapeDtypeStruct((blocks.splits, rows, weights.shape[1]), made),
        scratch_types={
            "stages": Stages(
                plgpu.SMEM((blocks.stages, blocks.rows, blocks.depth), x.dtype),
                plgpu.SMEM((blocks.stages, blocks.columns, blocks.depth), weights.dtype),
                plgpu.Barrier(num_arrivals=2, num_barriers=blocks.stages),
                plgpu.Barrier(num_arrivals=blocks.warpgroups, num_barriers=blocks.stages),
            ),
            "made": plgpu.SMEM((blocks.warpgroups, blocks.rows, blocks.columns // blocks.warpgroups), made),
        },
        grid=(blocks.programs,),
        grid_names=("program",),
        num_threads=blocks.warpgroups + 1,
        thread_name="warpgroup",
    )
    out = kernel(items, x, weights, sides)
    return out[0] if blocks.splits == 1 else out.sum(axis=0).astype(out_dtype)


def _kernel(
    items: GroupItems,
    x: Any,
    weights: Any,
    sides: Sides,
    out: Any,
    *,
    stages: Stages,
    made: Any,
    blocks: GpuMatmulBlocks,
) -> None:
    hbm, warpgroup = Hbm(items, x, weights, sides, out), lax.axis_index("warpgroup")

    @pl.when(warpgroup == blocks.warpgroups)
    def _() -> None:
        if blocks.warpgroups == 2:
            plgpu.set_max_registers(_REGISTERS[0], action="decrease")
        _bring(hbm, stages, blocks)

    @pl.when(warpgroup < blocks.warpgroups)
    def _() -> None:
        if blocks.warpgroups == 2:
            plgpu.set_max_registers(_REGISTERS[1], action="increase")
        _multiply(hbm, stages, made.at[warpgroup], warpgroup, blocks)


def _bring(hbm: Hbm, stages: Stages, blocks: GpuMatmulBlocks) -> None:
    """Fills stages with tiles, for as long as there are tasks; then waits until all are read."""
    steps = _steps(hbm, blocks)

    def bring(task: Task, first: jax.Array) -> None:
        group, row = hbm.items.group[task.item], _first_row(hbm.items, task)

        def step(index: jax.Array, _: None) -> None:
            slot = lax.rem(first + index, blocks.stages)

            @pl.when(first + index >= blocks.stages)
            def _() -> None:
                plgpu.barrier_wait(stages.free.at[slot])

            depth = pl.ds((task.split * steps + index) * blocks.depth, blocks.depth)
            x = hbm.x.at[pl.ds(row, blocks.rows), depth]
            weights = hbm.weights.at[group, pl.ds(task.column, blocks.columns), depth]
            plgpu.copy_gmem_to_smem(x, stages.x.at[slot], stages.arrived.at[slot])
            plgpu.copy_gmem_to_smem(weights, stages.weights.at[slot], stages.arrived.at[slot])

        lax.fori_loop(0, steps, step, None)

    def drain(index: jax.Array, _: None) -> None:
        plgpu.barrier_wait(stages.free.at[lax.rem(index, blocks.stages)])

    done = steps * _each_task(hbm, blocks, 0, hbm.items.ends[0], lambda task, index: bring(task, index * steps))
    lax.fori_loop(jnp.maximum(done - blocks.stages, 0), done, drain, None)


def _multiply(hbm: Hbm, stages: Stages, made: Any, warpgroup: jax.Array, blocks: GpuMatmulBlocks) -> None:
    """One warpgroup's part of each tile: its columns."""
    steps, columns = _steps(hbm, blocks), blocks.columns // blocks.warpgroups
    offset = warpgroup * columns

    def send(task: Task, result: jax.Array) -> None:
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        turned = plgpu.layout_cast(result.astype(made.dtype), plgpu.Layout.WGMMA_TRANSPOSED)
        store_plain(made.transpose((1, 0)), turned)
        plgpu.commit_smem()
        out = hbm.out.at[task.split, :, pl.ds(task.column + offset, columns)]
        _send_rows(made, out, hbm.items.row[task.item], hbm.items.low[task.item], hbm.items.high[task.item])

    def multiply(task: Task, index: jax.Array) -> None:
        group = hbm.items.group[task.item]
        sides = hbm.sides.at(
            group, pl.ds(task.column + offset, columns), pl.ds(_first_row(hbm.items, task), blocks.rows)
        )
        tile = Tile(stages, sides, pl.ds(offset, columns), blocks, hbm.x.shape[1])
        send(task, tile_product(tile, index * steps, steps, task.split))

    def clear(task: Task, _: jax.Array) -> None:
        send(task, plgpu.layout_cast(jnp.zeros((columns, blocks.rows), jnp.float32), plgpu.Layout.WGMMA))

    busy, every = hbm.items.ends[0], hbm.items.ends[1]
    _each_task(hbm, blocks, 0, busy, multiply)
    _each_task(hbm, blocks, busy, every, clear)
    plgpu.wait_smem_to_gmem(0)


def _each_task(
    hbm: Hbm, blocks: GpuMatmulBlocks, first: Any, end: Any, run: Callable[[Task, jax.Array], None]
) -> jax.Array:
    """run(task, how many tasks this thread block had before) for its tasks of the items from first to end.

    All items go through a panel of columns before the next panel: so those who read the same weights do so at about
    the same time, and so do those who read the same rows.
    """
    tiles = hbm.weights.shape[1] // blocks.columns
    panel = next(size for size in range(_PANEL, 0, -1) if tiles % size == 0)
    items = end - first
    program = lax.axis_index("program")
    count = lax.div(items * (tiles * blocks.splits) - program + (blocks.programs - 1), blocks.programs)

    def step(index: jax.Array, _: None) -> None:
        number = program + index * blocks.programs
        whole, rest = lax.div(number, items * panel), lax.rem(number, items * panel)
        split, turn = lax.div(whole, tiles // panel), lax.rem(whole, tiles // panel)
        column = (turn * panel + lax.rem(rest, panel)) * blocks.columns
        run(Task(first + lax.div(rest, panel), column, split), index)

    lax.fori_loop(0, count, step, None)
    return count


def _send_rows(made: Any, out: Any, row: jax.Array, low: jax.Array, high: jax.Array) -> None:
    """Copies rows low to high of `made` to `out`, whose row of the tile's first is `row`; neighbours stay as they are.

    A copy has a fixed size: any number of rows is a sum of powers of two.
    """
    rows = made.shape[0]

    @pl.when(high - low == rows)
    def _() -> None:
        plgpu.copy_smem_to_gmem(made, out.at[pl.ds(row, rows)])

    @pl.when(high - low < rows)
    def _() -> None:
        done = low
        for size in (1 << bit for bit in reversed(range((rows - 1).bit_length()))):
            some = jnp.bitwise_and(high - low, size)

            @pl.when(some > 0)
            def _(done: jax.Array = done, size: int = size) -> None:
                plgpu.copy_smem_to_gmem(made.at[pl.ds(done, size)], out.at[pl.ds(row + done, size)])

            done = done + some


def _first_row(items: GroupItems, task: Task) -> jax.Array:
    return pl.multiple_of(items.row[task.item], ALIGNED)


def _steps(hbm: Hbm, blocks: GpuMatmulBlocks) -> int:
    """Stages that a task goes through."""
    return hbm.x.shape[1] // blocks.splits // blocks.depth
