"""Times the attention of a backend on the model's shapes: a decode step of all slots, and a prefill."""

import time
from functools import partial
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
from jaxinfer_kernels import RaggedRows

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.layers.attention import Heads
from jaxinfer.model_config.layer_kind import AttentionKind
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.step.group_attention import group_attention, token_bytes

_CONTEXT = 1024
_BYTES = 256 << 20
"""Most bytes of KV blocks made for timing: nothing else has been allocated but weights."""
_RUNS, _CALLS = 5, 8

TRIAL_SCALE = 1 / 16
"""Scale of the trial's keys and values that are kept in few bits: with it int8 holds values up to 8."""


def time_attention(model: LoadedModel, shapes: EngineShapes, group: int) -> tuple[float, float]:
    """Seconds of the attention of all layers of a KV group: decode of every slot at 1,024 tokens of context or fewer,
    and a step's budget of tokens of one prompt. One layer is timed: medians of a few runs, without the time of
    dispatch.

    Raises what compiling or running raises.
    """
    rows, budget = shapes.max_num_seqs, shapes.max_num_batched_tokens
    room = max(_BYTES // (token_bytes(model, group) * rows), shapes.block_size)
    context, prompt = min(_CONTEXT, shapes.max_model_len - 1, room), min(budget, shapes.max_model_len)
    prefill = trial_rows(np.zeros(1), np.full(1, prompt), shapes.block_size)
    count = len(model.config.kv_groups[group].layers)
    decode = layer_seconds(model, shapes.block_size, group, rows, context)
    return count * decode, count * _seconds(model, shapes.block_size, group, prefill, prompt)


def layer_seconds(model: LoadedModel, block_size: int, group: int, rows: int, context: int) -> float:
    """Seconds of the attention of one layer of a KV group: a token of each of `rows` rows of `context` tokens."""
    return _seconds(model, block_size, group, trial_rows(np.full(rows, context), np.ones(rows), block_size), rows)


def trial_kind(model: LoadedModel, group: int) -> AttentionKind:
    """Attention of the first layer of a KV group."""
    return model.config.layers[model.config.kv_groups[group].layers[0]].mixer


def trial_heads(model: LoadedModel, group: int, tokens: int) -> Heads:
    """Random queries, keys and values of a KV group's heads. Scales are powers of two: none of their quotients is
    rounded, which programs might do otherwise."""
    kind = trial_kind(model, group)
    shapes = [(tokens, heads, kind.head_dim) for heads in (kind.num_heads, kind.num_kv_heads, kind.num_kv_heads)]
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(*each, jnp.float32).astype(model.dtype) for each in zip(keys, shapes, strict=True))
    sinks = jnp.linspace(-1, 1, kind.num_heads, dtype=jnp.float32) if kind.sinks else None
    return Heads(q, k, v, sinks, jnp.full(2, TRIAL_SCALE, jnp.float32) if kind.kv.scaled else None)


def trial_rows(starts: np.ndarray, counts: np.ndarray, block_size: int) -> RaggedRows:
    """Rows of `counts` tokens from positions `starts`, one behind the other, each with shuffled blocks of its own."""
    blocks = -(-int((starts + counts).max()) // block_size)
    tables = 1 + np.random.default_rng(0).permutation(len(starts) * blocks).reshape(-1, blocks)
    return RaggedRows(*(jnp.asarray(x, jnp.int32) for x in (tables, starts, np.cumsum(counts) - counts, counts)))


def _seconds(model: LoadedModel, block_size: int, group: int, rows: RaggedRows, tokens: int) -> float:
    """Time the attention of one layer, in seconds a call."""
    heads = trial_heads(model, group, tokens)
    attend = group_attention(model, group, trial_kind(model, group).scoring)
    shape = model.kv_shape(group, rows.page_table.size + 1, block_size)
    kv = jnp.zeros((1, *shape[1:]), model.kv_dtype(group))
    short = rows.count.shape[0] if tokens == rows.count.shape[0] else 0

    @partial(jax.jit, donate_argnums=0)
    def calls(kv: jax.Array, heads: Heads) -> tuple[jax.Array, jax.Array]:
        def call(_: int, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return attend(heads._replace(q=state[0]), state[1], 0, rows, short_rows=short)

        return jax.lax.fori_loop(0, _CALLS, call, (heads.q, kv))

    times = []
    for _ in range(_RUNS + 1):
        begin = time.perf_counter()
        out, kv = calls(kv, heads)
        out.block_until_ready()
        times.append((time.perf_counter() - begin) / _CALLS)
    return median(times[1:])
