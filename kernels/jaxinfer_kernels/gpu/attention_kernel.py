"""The GPU attention kernel: one program attends a block of queries over a run of key tiles, for one KV head.

Rows of a program's tile of queries are its tokens by the query heads that share the KV head, 64 a warpgroup.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.gpu.attention_form import LOG2E, LOWEST, ROWS, Arrays, Form, Memory, Work, read_work
from jaxinfer_kernels.gpu.page_copies import (
    Pages,
    bring_all,
    bring_first,
    bring_queries,
    pages_of,
    release,
)
from jaxinfer_kernels.gpu.transfers import keep_plain, load, store_plain

_WGMMA = plgpu.Layout.WGMMA


class Sums(NamedTuple):
    """An online softmax over base 2. highest, weight: [64]. values: sums [64, columns] of weighted values."""

    highest: jax.Array
    weight: jax.Array
    values: tuple[jax.Array, ...]


def attend_program(form: Form, refs: Arrays, memory: Memory) -> None:
    """The kernel."""
    work = read_work(refs)

    @pl.when(work.count > 0)
    def _() -> None:
        if form.warpgroups == 1:
            _attend(form, refs, memory, work, 0)
            return
        warpgroup = lax.axis_index("warpgroup")

        @pl.when(warpgroup < form.warpgroups)
        def _() -> None:
            plgpu.set_max_registers(232, action="increase")
            _attend(form, refs, memory, work, warpgroup)

        @pl.when(warpgroup == form.warpgroups)
        def _() -> None:
            plgpu.set_max_registers(40, action="decrease")
            bring_all(form, refs, memory, work)


def _attend(form: Form, refs: Arrays, memory: Memory, work: Work, warpgroup: Any) -> None:
    """All that a computing warpgroup does. One that works alone also brings keys and values."""
    alone = form.warpgroups == 1
    for stage in range(form.stages if alone else 0):
        bring_first(form, refs, memory, work, stage)
    bring_queries(form, refs, memory, work, warpgroup)
    position = work.start + warpgroup * form.tokens

    def step(index: jax.Array, state: tuple[Sums, Pages]) -> tuple[Sums, Pages]:
        sums, pages = state
        stage = lax.rem(index, form.stages)
        # Page ids are read a tile before they are needed: that takes as long as half of a tile's arithmetic.
        following = pages_of(form, refs, work, index + form.stages + 1) if alone else ()
        scores = _scores(form, memory, work, warpgroup, stage)
        release(form, refs, memory, work, index, pages, "k")
        sums, weights = _weighed(sums, _masked(form, work, position, index, scores))
        memory.weights[warpgroup] = weights.astype(memory.weights.dtype)
        v = _values_tile(form, memory, work, warpgroup, index, stage)
        plgpu.commit_smem()
        values = _plus_products(form, memory, sums.values, warpgroup, v)
        release(form, refs, memory, work, index, pages, "v")
        return sums._replace(values=values), following

    pages = pages_of(form, refs, work, form.stages) if alone else ()
    sums, _ = lax.fori_loop(0, work.tiles, step, (_no_sums(form), pages))

    @pl.when(work.part < 0)
    def _() -> None:
        _send_results(form, refs, memory, work, warpgroup, sums)

    @pl.when(work.part >= 0)
    def _() -> None:
        _send_part(form, refs, work, warpgroup, sums)


# --- Scores and values of a tile


def _product(a: Any, b: Any) -> jax.Array:
    """a @ b of two tiles in shared memory, float32."""

    def multiply(sums: Any) -> jax.Array:
        plgpu.wgmma(sums, a, b)
        return sums[...]

    return pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef((a.shape[0], b.shape[1]), jnp.float32))


def _plus_products(form: Form, memory: Memory, values: tuple[jax.Array, ...], warpgroup: Any, v: Any) -> Any:
    """Values with the products of the weights, [64, keys], and v, [keys, Dv], added, columns by columns."""

    def plus(value: jax.Array, part: Any) -> Any:
        if not form.in_place:
            return value + _product(memory.weights.at[warpgroup], part)

        def add(sums: Any) -> None:
            plgpu.wgmma(sums, memory.weights.at[warpgroup], part)  # indexed here: a closure over a number fails

        return pl.run_state(add)(plgpu.WGMMAAccumulatorRef.init(value))

    return tuple(plus(value, part) for value, part in zip(values, _columns(form, v), strict=True))


def _scores(form: Form, memory: Memory, work: Work, warpgroup: Any, stage: jax.Array) -> jax.Array:
    """Scores of a tile's keys, times log2(e)."""
    plgpu.barrier_wait(memory.k_here.at[stage])
    k = memory.k.at[stage]
    if form.narrow:
        _widen(k, memory.wide_k, lambda tile: tile)
        plgpu.commit_smem()
        k = memory.wide_k
    scores = _product(memory.q.at[warpgroup], k.transpose((1, 0))) * work.factor
    if form.soft_cap is None:
        return scores
    # cap * tanh(x / cap), where the factor above was 2 / cap: the hardware's own tanh has 11 bits.
    return form.soft_cap * LOG2E * (1 - 2 / (jnp.exp2(scores) + 1))


def _masked(form: Form, work: Work, position: jax.Array, index: jax.Array, scores: jax.Array) -> jax.Array:
    """Scores with -inf where a token does not see a key. NOTE: selected, since a score outside may be NaN."""
    first = (work.first_tile + index) * form.keys
    edge = first + form.keys > position + 1
    if form.window is not None:
        edge |= first <= position + form.tokens - 1 - form.window

    def mask(scores: jax.Array) -> jax.Array:
        token = plgpu.broadcasted_iota(jnp.int32, scores.shape, 0, layout=_WGMMA)
        token = position + (token if form.group == 1 else lax.div(token, jnp.int32(form.group)))
        key = first + plgpu.broadcasted_iota(jnp.int32, scores.shape, 1, layout=_WGMMA)
        seen = key <= token
        if form.window is not None:
            seen &= key > token - form.window
        return jnp.where(seen, scores, -jnp.inf)

    return lax.cond(edge, mask, lambda scores: scores, scores)


def _weighed(sums: Sums, scores: jax.Array) -> tuple[Sums, jax.Array]:
    """Sums with the weights of a tile in them, but not its values; and those weights."""
    highest = jnp.maximum(sums.highest, scores.max(axis=1))
    keep = jnp.exp2(sums.highest - highest)
    weights = jnp.exp2(scores - _along_rows(highest, scores.shape))
    weight = sums.weight * keep + weights.sum(axis=1)
    values = tuple(value * _along_rows(keep, value.shape) for value in sums.values)
    return Sums(highest, weight, values), weights


def _values_tile(form: Form, memory: Memory, work: Work, warpgroup: Any, index: jax.Array, stage: jax.Array) -> Any:
    """The tile of values, zero where a key is none of the block's: there they may be NaN."""
    plgpu.barrier_wait(memory.v_here.at[stage])
    v = memory.v.at[stage]
    first = (work.first_tile + index) * form.keys
    end = work.start + work.count
    begin = 0 if form.window is None else jnp.maximum(work.start - form.window + 1, 0)

    def held(tile: jax.Array, offset: Any) -> jax.Array:
        key = first + offset + plgpu.broadcasted_iota(jnp.int32, tile.shape, 0, layout=_WGMMA)
        return jnp.where((key < end) & (key >= begin), tile, jnp.zeros_like(tile))

    if form.narrow:
        _widen(v, memory.wide_v, lambda tile: held(tile, 0))
        return memory.wide_v

    @pl.when((first + form.keys > end) | (first < begin))
    def _() -> None:
        rows = max(form.keys // form.warpgroups, ROWS)

        @pl.when(warpgroup * rows < form.keys)
        def _() -> None:
            for part in _columns(form, v.at[pl.ds(warpgroup * rows, rows)]):
                part[...] = held(load(part, layout=_WGMMA), warpgroup * rows)

        if form.warpgroups > 1:
            plgpu.commit_smem()
            plgpu.barrier_arrive(memory.v_clean)
            plgpu.barrier_wait(memory.v_clean)

    return v


def _widen(tile: Any, wide: Any, change: Callable[[jax.Array], jax.Array]) -> None:
    """Puts a tile of pages of 8 bits into `wide` in its type, since wgmma takes both sides in one."""
    size = wide.shape[1] if wide.shape[1] <= 128 else math.gcd(wide.shape[1], 128)
    for first in range(0, wide.shape[1], size):
        columns = pl.ds(first, size)
        part = load(tile.at[:, columns])
        if jnp.issubdtype(part.dtype, jnp.floating):
            part = part.astype(jnp.float16)  # the one type that Hopper converts float8 to
            part = part if wide.dtype == jnp.float16 else part.astype(jnp.float32)
        wide[:, columns] = change(part.astype(wide.dtype))


def _columns(form: Form, v: Any) -> list[Any]:
    size = form.value_columns
    return [v.at[:, pl.ds(column, size)] for column in range(0, form.value_dim, size)]


def _no_sums(form: Form) -> Sums:
    row = _WGMMA.reduce(1)
    highest = plgpu.layout_cast(jnp.full((ROWS,), LOWEST, jnp.float32), row)
    weight = plgpu.layout_cast(jnp.zeros((ROWS,), jnp.float32), row)
    shape = (ROWS, form.value_columns)
    parts = range(form.value_dim // form.value_columns)
    return Sums(highest, weight, tuple(plgpu.layout_cast(jnp.zeros(shape, jnp.float32), _WGMMA) for _ in parts))


def _along_rows(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return lax.broadcast_in_dim(x, shape, [0])


# --- Results


def _send_results(form: Form, refs: Arrays, memory: Memory, work: Work, warpgroup: Any, sums: Sums) -> None:
    """Results of a block that is whole: a copy a token, so that no other token's are touched."""
    flat, first = memory.results.at[warpgroup], warpgroup * form.tokens
    weight = sums.weight
    if form.sinks:
        sink = load(refs.sinks.at[work.head], layout=_WGMMA.reduce(1), optimized=False)
        weight += jnp.exp2(sink - sums.highest)
    factor = refs.numbers[1] / weight
    keep_plain(flat)
    for number, value in enumerate(sums.values):
        columns = pl.ds(number * form.value_columns, form.value_columns)
        store_plain(flat.at[:, columns], (value * _along_rows(factor, value.shape)).astype(flat.dtype))
    plgpu.commit_smem()

    def send(token: jax.Array, _: None) -> None:
        rows = flat.at[pl.ds(token * form.group, form.group)]
        plgpu.copy_smem_to_gmem(rows, refs.out.at[work.offset + first + token, work.head])

    lax.fori_loop(0, jnp.clip(work.count - first, 0, form.tokens), send, None)
    plgpu.wait_smem_to_gmem(0)


def _send_part(form: Form, refs: Arrays, work: Work, warpgroup: Any, sums: Sums) -> None:
    """Sums of a block that is cut, for the kernel that merges them."""
    part = work.part * form.warpgroups + warpgroup
    for number, value in enumerate(sums.values):
        columns = pl.ds(number * form.value_columns, form.value_columns)
        store_plain(refs.parts.at[part, work.head, :, columns], value)
    store_plain(refs.stats.at[part, work.head, 0], sums.highest)
    store_plain(refs.stats.at[part, work.head, 1], sums.weight)


def kernel_of(form: Form) -> Callable[..., None]:
    """The kernel over references: fields of Arrays, then those of Memory."""

    def body(*refs: Any) -> None:
        memory = Memory(*refs[len(Arrays._fields) :])
        memory = memory if memory.results is not None else memory._replace(results=memory.flat)
        attend_program(form, Arrays(*refs[: len(Arrays._fields)]), memory)

    return body
