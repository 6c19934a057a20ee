"""cuDNN's attention on a GPU, through JAX. It reads keys and values that lie there already, and writes none.

One token a row: its paged form. Whole prompts: its dense form, for which keys and values lie side by side, since what
`cudnn_decode` gives takes one token a row; that is less work than paging.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.kernel_bench.cases import AttentionCase
from benchmarks.kernel_bench.checks import check_close, poison
from benchmarks.kernel_bench.cudnn_attention import cudnn_decode, cudnn_unavailable
from benchmarks.kernel_bench.peers import Peers, not_for, without
from benchmarks.kernel_bench.timing import Chain

Arrays = tuple[jax.Array, ...]
Step = Callable[..., jax.Array]
"""q, k and v, and what all layers share, to what has the shape of q."""


def cudnn_peers(case: AttentionCase, platform: str, page_size: int, layers: int, calls: int, dtype: str) -> Peers:
    """`cudnn paged` for decode, `cudnn dense` for whole prompts."""
    if platform != "gpu":
        return without("cudnn", f"it needs a GPU, and JAX runs on {platform}")
    if reason := cudnn_unavailable():
        return without("cudnn", reason)
    if dtype not in ("bfloat16", "float16"):
        return without("cudnn", f"it takes bfloat16 or float16, not {dtype}")
    if reason := _not_taken(case):
        return not_for("cudnn", case, reason)
    if case.kind == "decode":
        return Peers({"cudnn paged": lambda: paged_chain(case, page_size, layers, calls, dtype)}, {})
    return Peers({"cudnn dense": lambda: _dense_chain(case, layers, calls, dtype)}, {})


def _not_taken(case: AttentionCase) -> str | None:
    model = case.model
    if model.latent:
        return "it has no latent attention"
    if model.window is not None:
        return "its paged form has no window here"
    if model.key_dim != model.value_dim:
        return "keys and values must be of one size"
    if case.kind == "decode" or (case.kind == "prefill" and case.new == case.context):
        return None
    return "it takes one token a row, or whole prompts"


def paged_chain(case: AttentionCase, page_size: int, layers: int, calls: int, dtype: str) -> Chain:
    """Arrays of pages, two a layer, and one shuffled table for all. Raises ValueError where a result is wrong."""
    model, width = case.model, -(-case.context // page_size)
    order = np.random.default_rng(0).permutation(case.rows * width)
    table = jnp.asarray(order.reshape(case.rows, width), jnp.int32)
    lengths = jnp.full(case.rows, case.context, jnp.int32)
    attend = partial(cudnn_decode, scale=model.key_dim**-0.5)
    query = (case.rows, model.q_heads, model.key_dim)
    sizes = (query, *((case.rows * width, page_size, model.kv_heads, model.key_dim),) * 2)
    _check(attend, _layer(sizes, 1000, dtype), table, lengths)

    return _unrolled(attend, sizes, min(layers, calls), calls, dtype, table, lengths)


def _dense_chain(case: AttentionCase, layers: int, calls: int, dtype: str) -> Chain:
    model = case.model
    heads = (model.q_heads, model.kv_heads, model.kv_heads)
    sizes = tuple((case.rows, case.new, count, model.key_dim) for count in heads)
    return _unrolled(dense_step(case), sizes, min(layers, calls), calls, dtype)


def dense_step(case: AttentionCase) -> Step:
    """q [R, T, Hq, D], k and v [R, T, Hkv, D] of whole prompts."""
    scale = case.model.key_dim**-0.5
    return partial(jax.nn.dot_product_attention, is_causal=True, scale=scale, implementation="cudnn")


def _unrolled(
    step: Step, sizes: Sequence[tuple[int, ...]], layers: int, calls: int, dtype: str, *shared: jax.Array
) -> Chain:
    q, *_ = _layer(sizes, 0, dtype)
    kept = [tuple(_layer(sizes, seed, dtype)[1:]) for seed in range(layers)]
    rounds = -(-calls // layers)
    chain = looped(step, rounds)
    return Chain(lambda q: jax.block_until_ready(chain(q, kept, shared)), q, rounds * layers)


def looped(step: Step, rounds: int) -> Any:
    """A loop over all layers, one after the other in its body: a layer picked by its index would be copied."""

    @jax.jit
    def chain(q: jax.Array, kept: list[Arrays], shared: Arrays) -> jax.Array:
        def once(_: jax.Array, q: jax.Array) -> jax.Array:
            for k, v in kept:
                q = step(q, k, v, *shared)
            return q

        return jax.lax.fori_loop(0, rounds, once, q)

    return chain


def _layer(sizes: Sequence[tuple[int, ...]], seed: int, dtype: str) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(seed), len(sizes))
    return [jax.random.normal(key, size, jnp.dtype(dtype)) for key, size in zip(keys, sizes, strict=True)]


def _check(attend: Callable[..., jax.Array], drawn: list[jax.Array], table: jax.Array, lengths: jax.Array) -> None:
    """A peer that reads other keys than it is asked for is not timed."""
    q, k, v = drawn
    expected = _attended(q, k, v, table, lengths)
    poison(q.shape, q.dtype)
    check_close("attention", "cudnn paged", jax.jit(attend)(q, k, v, table, lengths), expected)


@jax.jit
def _attended(q: jax.Array, k: jax.Array, v: jax.Array, table: jax.Array, lengths: jax.Array) -> jax.Array:
    """Over gathered keys, in float32."""
    rows, heads, width = q.shape
    keys, values = (each[table].reshape(rows, -1, *each.shape[2:]).astype(jnp.float32) for each in (k, v))
    grouped = q.reshape(rows, keys.shape[2], -1, width).astype(jnp.float32) * width**-0.5
    scores = jnp.einsum("rhgd,rshd->rhgs", grouped, keys, precision="highest")
    seen = jnp.arange(keys.shape[1]) < lengths[:, None, None, None]
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))
    return jnp.einsum("rhgs,rshd->rhgd", weights, values, precision="highest").reshape(rows, heads, width)
