"""The `mosaic_gpu` backend: cuts the work into items, runs the kernel over them, and merges what was cut."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.gpu import attention_kernel, merge
from jaxinfer_kernels.gpu.attention_blocks import SHARED_BYTES, GpuBlocks, shared_bytes
from jaxinfer_kernels.gpu.attention_form import LOG2E, ROWS, Arrays, Form, Memory
from jaxinfer_kernels.gpu.merge import MergeArrays
from jaxinfer_kernels.gpu.work_items import WorkItems, query_blocks, work_items
from jaxinfer_kernels.rows import QueryBlocks, RaggedRows, split_rows
from jaxinfer_kernels.scoring import Scoring
from jaxinfer_kernels.zeros import zeros_after

_PARAMS = plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=0)


class Problem(NamedTuple):
    """One call. q: [T, Hq, Dk]. kv_pages: [L, 2, N, page, Hkv, D], which hold all keys already."""

    q: jax.Array
    kv_pages: jax.Array
    layer: jax.Array | int
    rows: RaggedRows
    value_dim: int
    scoring: Scoring
    sizes: GpuBlocks


def attend_gpu(problem: Problem, short_rows: int | jax.Array, short_len: int) -> jax.Array:
    """Attention, [T, Hq, Dv] in q's type; zero for tokens of no row."""
    q, heads, sizes = problem.q, problem.kv_pages.shape[4], problem.sizes
    tokens, group = q.shape[0], q.shape[1] // heads
    tile_tokens = ROWS // group
    long_tokens = tile_tokens * sizes.warpgroups
    short, long = split_rows(problem.rows, short_rows, tokens, long_tokens)
    out = jax.new_ref(zeros_after(q, (tokens, heads, group, problem.value_dim), q.dtype))
    if short is not None:
        width = min(short_len, tile_tokens)
        form = _form(problem, width, sizes.keys, sizes.stages, 1)
        _attend(problem, query_blocks(short, short_len, width), form, out)
    if long is not None:
        form = _form(problem, tile_tokens, sizes.long_keys, sizes.long_stages, sizes.warpgroups)
        _attend(problem, long, form, out)
    return jax.freeze(out).reshape(tokens, -1, problem.value_dim)


def _form(problem: Problem, tokens: int, keys: int, stages: int, warpgroups: int) -> Form:
    q, (_, _, pages, page, heads, width) = problem.q, problem.kv_pages.shape
    scoring, narrow = problem.scoring, problem.kv_pages.dtype.itemsize == 1
    fixed, stage = shared_bytes(q.shape[2], problem.value_dim, keys, warpgroups, narrow)
    if narrow and warpgroups > 1:
        raise ValueError("warpgroups must be 1 for pages of 8 bits")
    if fixed + stages * stage > SHARED_BYTES:
        raise ValueError(
            f"{stages} stages of {keys} keys take {fixed + stages * stage} bytes of shared memory; a block has "
            f"{SHARED_BYTES}"
        )
    return Form(
        group=q.shape[1] // heads,
        key_dim=q.shape[2],
        value_dim=problem.value_dim,
        width=width,
        page=page,
        pages=pages,
        keys=keys,
        stages=stages,
        tokens=tokens,
        warpgroups=warpgroups,
        narrow=narrow,
        window=scoring.window,
        soft_cap=scoring.soft_cap,
        sinks=scoring.sinks is not None,
        in_place=problem.sizes.in_place,
    )


def _attend(problem: Problem, blocks: QueryBlocks, form: Form, out: Any) -> None:
    heads, sizes = problem.kv_pages.shape[4], problem.sizes
    work = work_items(blocks, form.window, form.keys, heads, sizes.programs, sizes.least)
    numbers, sinks = _numbers(problem), _sinks(problem, form)
    parts, stats = _run(problem, form, work, numbers, sinks, out)
    _merge(form, heads, MergeArrays(work.merges, parts, stats, numbers, sinks, out))


def _run(
    problem: Problem, form: Form, work: WorkItems, numbers: jax.Array, sinks: jax.Array, out: Any
) -> tuple[jax.Array, jax.Array]:
    """The kernel over the items. Returns parts and stats of Arrays."""
    q, pages = problem.q, problem.kv_pages
    heads, parts = pages.shape[4], work.parts * form.warpgroups
    several = form.warpgroups > 1
    kernel = plgpu.kernel(
        attention_kernel.kernel_of(form),
        out_type=(
            jax.ShapeDtypeStruct((parts, heads, ROWS, form.part_width), jnp.float32),
            jax.ShapeDtypeStruct((parts, heads, 2, ROWS), jnp.float32),
        ),
        scratch_types=_memory(form, q.dtype, pages.dtype),
        grid=(work.items.shape[0], heads),
        grid_names=("item", "head"),
        num_threads=form.warpgroups + 1 if several else None,
        thread_name="warpgroup" if several else None,
        compiler_params=_PARAMS,
        kernel_name="ragged_paged_attention",
    )
    layer = jnp.asarray(problem.layer, jnp.int32).reshape(1)
    arrays = Arrays(
        q.reshape(q.shape[0], heads, form.group, form.key_dim),
        pages.reshape(-1, form.page, heads * form.width),
        problem.rows.page_table,
        work.items,
        layer,
        numbers,
        sinks,
        out,
        None,
        None,
    )
    return kernel(*arrays[:-2])


def _memory(form: Form, dtype: Any, pages: Any) -> Memory:
    groups, same = form.warpgroups, form.key_dim == form.value_dim
    copies = form.keys // form.run
    ring = (form.stages, form.keys)
    here = plgpu.Barrier(num_arrivals=copies, num_barriers=form.stages)
    done = plgpu.Barrier(num_arrivals=groups, num_barriers=form.stages) if groups > 1 else None
    return Memory(
        q=plgpu.SMEM((groups, ROWS, form.key_dim), dtype),
        k=plgpu.SMEM((*ring, form.key_dim), pages),
        v=plgpu.SMEM((*ring, form.value_dim), pages),
        weights=plgpu.SMEM((groups, ROWS, form.keys), dtype),
        flat=plgpu.SMEM((groups, ROWS, form.key_dim), dtype),
        results=None if same else plgpu.SMEM((groups, ROWS, form.value_dim), dtype),
        wide_k=plgpu.SMEM((form.keys, form.key_dim), dtype) if form.narrow else None,
        wide_v=plgpu.SMEM((form.keys, form.value_dim), dtype) if form.narrow else None,
        q_here=plgpu.Barrier(num_arrivals=form.tokens, num_barriers=groups),
        k_here=here,
        v_here=here,
        k_done=done,
        v_done=done,
        v_clean=plgpu.Barrier(num_arrivals=groups) if groups > 1 else None,
    )


def _merge(form: Form, heads: int, arrays: MergeArrays) -> None:
    """Merge the parts of rows. A program merges one row of a tile of short rows, which may have many parts, or one
    token's rows of a long one."""
    rows = form.tokens * form.group * form.warpgroups
    each = 1 if form.warpgroups == 1 else form.group
    kernel = plgpu.kernel(
        merge.kernel_of(form, each),
        out_type=(),
        scratch_types=[plgpu.SMEM((form.part_width,), arrays.out.dtype)],
        grid=(arrays.merges.shape[0], rows // each, heads),
        grid_names=("merge", "rows", "head"),
        compiler_params=_PARAMS,
        kernel_name="merge_attention",
    )
    kernel(*arrays)


def _numbers(problem: Problem) -> jax.Array:
    """Return the factors of scores and of results, float32 [2]. Scores are to base 2; with a soft cap they are also
    multiplied by 2 / soft_cap."""
    scoring = problem.scoring
    score = scoring.scale * LOG2E * (2 / scoring.soft_cap if scoring.soft_cap else 1)
    k_scale, v_scale = (1.0 if x is None else x for x in (scoring.k_scale, scoring.v_scale))
    return jnp.stack([jnp.float32(score) * k_scale, jnp.float32(1) * v_scale])


def _sinks(problem: Problem, form: Form) -> jax.Array:
    """Sinks of a tile's rows, [Hkv, 64] of base 2."""
    heads = problem.kv_pages.shape[4]
    if problem.scoring.sinks is None:
        return jnp.zeros((heads, ROWS), jnp.float32)
    sinks = problem.scoring.sinks.astype(jnp.float32).reshape(heads, form.group) * LOG2E
    return jnp.tile(sinks, (1, ROWS // form.group + 1))[:, :ROWS]
