"""Copies of queries, keys and values to shared memory, for the GPU attention kernel."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.gpu.attention_form import Arrays, Form, Memory, Work
from jaxinfer_kernels.gpu.transfers import keep_plain, load

Pages = tuple[jax.Array, ...]
"""Ids of the pages of a tile."""


def bring_queries(form: Form, refs: Arrays, memory: Memory, work: Work, warpgroup: Any) -> None:
    """A copy a token; tokens that are not there are another time the last, whose results nobody sends."""
    flat, here = memory.flat.at[warpgroup], memory.q_here.at[warpgroup]
    if form.value_dim != form.key_dim:
        keep_plain(flat)
        plgpu.commit_smem()

    def bring(token: jax.Array, _: None) -> None:
        place = work.offset + jnp.minimum(warpgroup * form.tokens + token, work.count - 1)
        rows = flat.at[pl.ds(token * form.group, form.group)]
        plgpu.copy_gmem_to_smem(refs.q.at[place, work.head], rows, here, oob_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS)

    lax.fori_loop(0, form.tokens, bring, None)
    plgpu.barrier_wait(here)
    tile = load(flat, layout=plgpu.Layout.WGMMA, optimized=False)
    memory.q[warpgroup] = tile
    plgpu.commit_smem()


def bring_all(form: Form, refs: Arrays, memory: Memory, work: Work) -> None:
    """All that the warpgroup which only copies does."""

    def step(index: jax.Array, pages: Pages) -> Pages:
        following = pages_of(form, refs, work, index + 1)
        stage = lax.rem(index, form.stages)
        for side, done in (("k", memory.k_done), ("v", memory.v_done)):

            @pl.when(index >= form.stages)
            def _(done: Any = done) -> None:
                plgpu.barrier_wait(done.at[stage])

            _bring(form, refs, memory, work, index, pages, side)
        return following

    lax.fori_loop(0, work.tiles, step, pages_of(form, refs, work, 0))


def release(form: Form, refs: Arrays, memory: Memory, work: Work, index: jax.Array, pages: Pages, side: str) -> None:
    """Tells that a stage is read, where it is filled again; a warpgroup that works alone fills it, from `pages`."""

    @pl.when(index + form.stages < work.tiles)
    def _() -> None:
        if form.warpgroups == 1:
            _bring(form, refs, memory, work, index + form.stages, pages, side)
        else:
            done = memory.k_done if side == "k" else memory.v_done
            plgpu.barrier_arrive(done.at[lax.rem(index, form.stages)])


def bring_first(form: Form, refs: Arrays, memory: Memory, work: Work, index: int) -> None:
    @pl.when(index < work.tiles)
    def _() -> None:
        pages = pages_of(form, refs, work, index)
        _bring(form, refs, memory, work, index, pages, "k")
        _bring(form, refs, memory, work, index, pages, "v")


def pages_of(form: Form, refs: Arrays, work: Work, index: Any) -> Pages:
    """Pages of a tile; a page beyond the row's last is another time that one."""
    last = lax.div(work.start + work.count - 1, form.page)
    first = (work.first_tile + index) * form.keys
    entries = (lax.div(first + run * form.run, form.page) for run in range(form.keys // form.run))
    return tuple(refs.table[work.row, jnp.minimum(entry, last)] for entry in entries)


def _bring(form: Form, refs: Arrays, memory: Memory, work: Work, index: Any, pages: Pages, side: str) -> None:
    """Starts the copies of one tile of keys or values."""
    stage = lax.rem(index, form.stages)
    ring, here = (memory.k, memory.k_here) if side == "k" else (memory.v, memory.v_here)
    dim = form.key_dim if side == "k" else form.value_dim
    before = (work.layer * 2 + (0 if side == "k" else 1)) * form.pages
    first = (work.first_tile + index) * form.keys
    for run, page in enumerate(pages):
        within = lax.rem(first, form.page) if form.page > form.run else 0
        plgpu.copy_gmem_to_smem(
            refs.kv.at[before + page, pl.ds(within, form.run), pl.ds(work.head * form.width, dim)],
            ring.at[stage, pl.ds(run * form.run, form.run)],
            here.at[stage],
        )
