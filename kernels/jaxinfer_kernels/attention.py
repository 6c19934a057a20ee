"""Ragged attention over paged KV: the one signature behind which all backends stand."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer_kernels.available import unavailable
from jaxinfer_kernels.blocks import BlockSizes, default_block_sizes
from jaxinfer_kernels.cpu.attention import attend_native, check_native_pages
from jaxinfer_kernels.gpu.attention_blocks import GpuBlocks, check_gpu_shapes, gpu_blocks
from jaxinfer_kernels.layouts import LANES, KVLayout, value_lanes
from jaxinfer_kernels.pages import as_type, quantise, write_kv
from jaxinfer_kernels.rows import RaggedRows, token_places
from jaxinfer_kernels.scoring import Scoring
from jaxinfer_kernels.tiles import Pages
from jaxinfer_kernels.tpu.attention_blocks import TpuBlocks, check_tpu_page, tpu_blocks
from jaxinfer_kernels.xla import attend_pages

BACKENDS: dict[str, tuple[KVLayout, ...]] = {
    "xla": (KVLayout.TOKENS, KVLayout.HEADS, KVLayout.LATENT),
    "mosaic_tpu": (KVLayout.HEADS, KVLayout.LATENT),
    "mosaic_gpu": (KVLayout.TOKENS,),
    "native": (KVLayout.TOKENS, KVLayout.LATENT),
}
"""The backends, and the layouts that each reads: LATENT in `ragged_latent_attention`, others in
`ragged_paged_attention`."""


def ragged_paged_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_pages: jax.Array,
    layer: jax.Array | int,
    rows: RaggedRows,
    *,
    short_rows: int | jax.Array,
    short_len: int,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: jax.Array | None = None,
    kv_scale: tuple[jax.Array | float, jax.Array | float] | None = None,
    kv_dtype: jnp.dtype | None = None,
    backend: str = "xla",
    layout: KVLayout = KVLayout.TOKENS,
    block_sizes: BlockSizes | TpuBlocks | GpuBlocks | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Writes k and v into the pages, then attends causally from each token over its row's keys.

    q: [T, Hq, Dk]; query head h reads KV head h // (Hq // Hkv). k: [T, Hkv, Dk]. v: [T, Hkv, Dv]. kv_pages: an array of
    `layout`, donated by the caller for a write in place; page 0 is scratch and takes the padding's K and V.
    layer: index into its layers, static or traced.
    short_rows: how many rows, from the first, are short, i.e. hold at most short_len tokens; they are packed with
    the query group. The Python int R says that every row is short, and the long path is not traced.
    scale multiplies the scores. window: keys a token sees, itself included. soft_cap: scores become
    cap * tanh(score / cap). sinks: [Hq], a score a head that takes part in the softmax and adds nothing.
    kv_scale: (k, v), what values of quantised pages are multiplied by. kv_dtype: the type of K and V where it is not
    that of the array: pages of `xla` may hold their bits as unsigned integers of that width, since XLA on a CPU widens
    the whole array of a short float for every write (jax 0.12: of e4m3; before 0.11 also of bfloat16).
    block_sizes: the backend's; by default chosen by shapes and platform.

    A page that a row writes to in this step must be that row's alone: no other row may write to it, and none may attend
    to tokens that another row writes in the step. `xla` and `mosaic_gpu` write all K and V before they read, but
    `mosaic_tpu` writes short rows' while it attends, and a page's other slots with them as it found them. Pages that
    nobody writes to may be shared. Page 0 is never attended to.

    On a machine without a TPU `mosaic_tpu` runs within `pltpu.force_tpu_interpret_mode`. `mosaic_gpu` needs a Hopper
    GPU, and jax 0.11; of other GPUs its caller must know. On a CPU it runs within `plgpu.force_gpu_interpret_mode`,
    with `GpuBlocks` of `in_place=False`; outside of it JAX refuses to compile its kernel for a CPU.

    Returns (out [T, Hq, Dv] in q's type, zero for tokens of no row; kv_pages). Softmax and sums are in float32. What
    pages hold beyond a row's last token, or behind its window, never reaches the result, NaN included.
    Raises ValueError for an unknown backend or shapes that do not fit each other.
    """
    _check(q, k, v, kv_pages, rows, short_rows, short_len, backend, layout, window, sinks)
    scales = kv_scale or (None, None)
    values = jnp.dtype(kv_dtype or kv_pages.dtype)
    _check_bits(kv_pages.dtype, values, backend)
    k, v = (as_type(quantise(x, scale, values), kv_pages.dtype) for x, scale in zip((k, v), scales, strict=True))
    call = Call(q, k, v, kv_pages, layer, rows, Scoring(scale, window, soft_cap, sinks, *scales))
    if backend == "mosaic_tpu":
        lanes = value_lanes(k.shape[-1], v.shape[-1])
        return _on_tpu(call, short_rows, short_len, lanes, block_sizes)
    if backend == "mosaic_gpu":
        return _on_gpu(call, short_rows, short_len, v.shape[-1], block_sizes)
    if backend == "native":
        return _on_native(call, v.shape[-1], block_sizes, values)
    return _on_xla(call, short_rows, short_len, layout, v.shape[-1], block_sizes, values)


def ragged_latent_attention(
    q: jax.Array,
    latent: jax.Array,
    kv_pages: jax.Array,
    layer: jax.Array | int,
    rows: RaggedRows,
    *,
    value_dim: int,
    short_rows: int | jax.Array,
    short_len: int,
    scale: float,
    backend: str = "xla",
    block_sizes: BlockSizes | TpuBlocks | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) with absorbed projections: one key for all heads.

    q: [T, Hq, Dk], each head's query in the latent space, then its rotated part (512 + 64). latent: [T, Dk], what is
    kept of each token; its first value_dim elements are its value. kv_pages: [L, N, page, W] of KVLayout.LATENT, W at
    least Dk and a multiple of 128 for `mosaic_tpu`; the rest as for `ragged_paged_attention`.

    Returns (out [T, Hq, value_dim] in q's type, zero for tokens of no row; kv_pages).
    """
    if kv_pages.ndim != 4 or kv_pages.shape[3] < latent.shape[1]:
        raise ValueError(f"kv_pages must be [L, N, page, at least {latent.shape[1]}], not {kv_pages.shape}")
    if q.ndim != 3 or q.shape[::2] != latent.shape:
        raise ValueError(f"q must be [T, Hq, D] and latent [T, D], not {q.shape} and {latent.shape}")
    if not 0 < value_dim <= latent.shape[1]:
        raise ValueError(f"value_dim must be 1 to {latent.shape[1]}, not {value_dim}")
    _check_rows(rows, short_rows, short_len, backend, KVLayout.LATENT)
    k = latent[:, None].astype(kv_pages.dtype)
    call = Call(q, k, None, kv_pages, layer, rows, Scoring(scale, None, None, None, None, None))
    if backend == "mosaic_tpu":
        if kv_pages.shape[3] % LANES:
            raise ValueError(f"kv_pages must have a width that is a multiple of {LANES}, not {kv_pages.shape[3]}")
        call = call._replace(kv_pages=kv_pages[:, :, None, None])
        out, pages = _on_tpu(call, short_rows, short_len, (0, value_dim), block_sizes)
        return out, pages[:, :, 0, 0]
    if backend == "native":
        return _on_native(call, value_dim, block_sizes, kv_pages.dtype)
    return _on_xla(call, short_rows, short_len, KVLayout.LATENT, value_dim, block_sizes, kv_pages.dtype)


class Call(NamedTuple):
    """Arguments that all backends share; k and v in the pages' type, v None where it is part of k."""

    q: jax.Array
    k: jax.Array
    v: jax.Array | None
    kv_pages: jax.Array
    layer: jax.Array | int
    rows: RaggedRows
    scoring: Scoring


def _on_xla(
    call: Call,
    short_rows: int | jax.Array,
    short_len: int,
    layout: KVLayout,
    value_dim: int,
    sizes: Any,
    dtype: jnp.dtype,
) -> tuple[jax.Array, jax.Array]:
    sizes = _sizes("xla", sizes, BlockSizes, default_block_sizes)
    page = layout.page_size(call.kv_pages)
    places = token_places(call.rows, call.q.shape[0], page)
    kv_pages = write_kv(call.kv_pages, call.layer, call.k, call.v, places, layout)
    per_tile = -(-sizes.keys // page)
    pages = Pages(kv_pages, layout, call.layer, call.rows.page_table, per_tile, call.k.shape[-1], value_dim, dtype)
    return attend_pages(call.q, pages, call.rows, short_rows, short_len, call.scoring, sizes)


def _on_native(call: Call, value_dim: int, sizes: Any, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    if sizes is not None:
        raise ValueError("block_sizes must be None for backend native, which takes none")
    check_native_pages(dtype)
    return attend_native(*call, value_dim, dtype)


def _on_tpu(
    call: Call,
    short_rows: int | jax.Array,
    short_len: int,
    lanes: tuple[int, int],
    sizes: Any,
) -> tuple[jax.Array, jax.Array]:
    from jaxinfer_kernels.tpu.attention import Problem, attend_tpu  # Pallas takes half a second to import

    _, _, sides, heads, page, width = call.kv_pages.shape
    check_tpu_page(call.kv_pages.dtype, page)
    row_bytes = sides * width * call.kv_pages.dtype.itemsize
    sizes = _sizes("mosaic_tpu", sizes, TpuBlocks, lambda: tpu_blocks(heads, call.q.shape[1] // heads, row_bytes))
    problem = Problem(*call[:6], lanes, call.scoring, sizes)
    return attend_tpu(problem, short_rows, short_len)


def _on_gpu(
    call: Call, short_rows: int | jax.Array, short_len: int, value_dim: int, sizes: Any
) -> tuple[jax.Array, jax.Array]:
    page, heads = call.kv_pages.shape[3:5]
    key_dim, narrow = call.k.shape[-1], call.kv_pages.dtype.itemsize == 1
    check_gpu_shapes(call.q.dtype, call.kv_pages.dtype, call.q.shape[1] // heads, key_dim, value_dim, page)
    sizes = _sizes("mosaic_gpu", sizes, GpuBlocks, lambda: gpu_blocks(key_dim, value_dim, narrow))
    from jaxinfer_kernels.gpu.attention import Problem, attend_gpu  # needs jax 0.11, see `unavailable`
    from jaxinfer_kernels.gpu.kv_write import write_new

    places = token_places(call.rows, call.q.shape[0], page)
    assert call.v is not None  # latent attention has no kernel for GPUs
    kv_pages = write_new(call.kv_pages, call.layer, call.k, call.v, places)
    problem = Problem(call.q, kv_pages, call.layer, call.rows, value_dim, call.scoring, sizes)
    return attend_gpu(problem, short_rows, short_len), kv_pages


def _sizes(backend: str, given: Any, kind: type, default: Callable[[], Any]) -> Any:
    if given is not None and not isinstance(given, kind):
        raise ValueError(f"block_sizes of backend {backend} must be {kind.__name__}, not {type(given).__name__}")
    return given or default()


def _check(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_pages: jax.Array,
    rows: RaggedRows,
    short_rows: int | jax.Array,
    short_len: int,
    backend: str,
    layout: KVLayout,
    window: int | None,
    sinks: jax.Array | None,
) -> None:
    _check_rows(rows, short_rows, short_len, backend, layout)
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1, not {window}")
    if sinks is not None and sinks.shape != q.shape[1:2]:
        raise ValueError(f"sinks must be [{q.shape[1]}], not {sinks.shape}")
    if layout is KVLayout.LATENT:
        raise ValueError("layout latent has one row for all heads: ragged_latent_attention reads it")
    if q.ndim != 3 or k.ndim != 3 or v.ndim != 3 or k.shape[:2] != v.shape[:2] or k.shape[0] != q.shape[0]:
        raise ValueError(f"q, k and v must be [T, heads, D], not {q.shape}, {k.shape} and {v.shape}")
    if q.shape[2] != k.shape[2] or q.shape[1] % k.shape[1]:
        raise ValueError(f"q must be [T, a multiple of {k.shape[1]}, {k.shape[2]}], not {q.shape}")
    _check_pages(kv_pages, layout, k.shape[1], k.shape[2], v.shape[2])


def _check_bits(held: jnp.dtype, values: jnp.dtype, backend: str) -> None:
    if held == values:
        return
    if backend not in ("xla", "native"):
        raise ValueError(f"kv_dtype of {backend} must be the pages' type, {held}, not {values}")
    bits = f"uint{8 * values.itemsize}"
    if held != jnp.dtype(bits):
        raise ValueError(f"kv_pages must be {values} or {bits}, not {held}, where kv_dtype is {values}")


def _check_rows(rows: RaggedRows, short_rows: int | jax.Array, short_len: int, backend: str, layout: KVLayout) -> None:
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is unknown; known are {', '.join(BACKENDS)}")
    if layout not in BACKENDS[backend]:
        readers = " or ".join(name for name, layouts in BACKENDS.items() if layout in layouts)
        raise ValueError(f"backend for pages in layout {layout} must be {readers}, not {backend}")
    if reason := unavailable(backend):
        raise ValueError(reason)
    if short_len < 1:
        raise ValueError(f"short_len must be at least 1, not {short_len}")
    count = rows.page_table.shape[0]
    if isinstance(short_rows, int) and not 0 <= short_rows <= count:
        raise ValueError(f"short_rows must be 0 to {count}, not {short_rows}")


def _check_pages(kv_pages: jax.Array, layout: KVLayout, kv_heads: int, key_dim: int, value_dim: int) -> None:
    rank = len(layout.axes)
    if kv_pages.ndim == rank:
        layers, pages, size = kv_pages.shape[0], kv_pages.shape[layout.page_axis], layout.page_size(kv_pages)
        wanted = layout.shape(
            layers=layers, pages=pages, page_size=size, kv_heads=kv_heads, key_dim=key_dim, value_dim=value_dim
        )
        if kv_pages.shape == wanted:
            return
        raise ValueError(f"kv_pages in layout {layout} must be {wanted}, not {kv_pages.shape}")
    raise ValueError(f"kv_pages in layout {layout} must have {rank} axes, not {kv_pages.ndim}")
