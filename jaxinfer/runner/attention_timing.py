"""Times the attention of a backend on the model's shapes: a decode step of all slots, and a prefill."""

import time
from functools import partial
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
from jaxinfer_kernels import RaggedRows

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.group_attention import group_attention, token_bytes

_CONTEXT = 1024
_BYTES = 256 << 20
"""Most bytes of KV blocks made for timing: nothing else has been allocated but weights."""
_RUNS, _CALLS = 5, 8


def time_attention(model: LoadedModel, shapes: EngineShapes, backend: str) -> tuple[float, float]:
    """Seconds of all layers' attention: decode of every slot at 1,024 tokens of context or fewer, and a step's budget
    of tokens of one prompt. One layer of each KV group is timed: medians of a few runs, without the time of dispatch.

    Raises what compiling or running raises.
    """
    rows, budget = shapes.max_num_seqs, shapes.max_num_batched_tokens
    context = min(_CONTEXT, shapes.max_model_len - 1, max(_BYTES // (token_bytes(model) * rows), shapes.block_size))
    prompt = min(budget, shapes.max_model_len)
    decode = trial_rows(np.full(rows, context), np.ones(rows), shapes.block_size)
    prefill = trial_rows(np.zeros(1), np.full(1, prompt), shapes.block_size)
    counts = [len(group.layers) for group in model.config.kv_groups]

    def seconds(step: RaggedRows, tokens: int) -> float:
        windows = [group.window for group in shapes.groups]
        times = [_seconds(model, shapes.block_size, backend, step, tokens, window) for window in windows]
        return sum(count * time for count, time in zip(counts, times, strict=True))

    return seconds(decode, rows), seconds(prefill, prompt)


def trial_rows(starts: np.ndarray, counts: np.ndarray, block_size: int) -> RaggedRows:
    """Rows of `counts` tokens from positions `starts`, one behind the other, each with shuffled blocks of its own."""
    blocks = -(-int((starts + counts).max()) // block_size)
    tables = 1 + np.random.default_rng(0).permutation(len(starts) * blocks).reshape(-1, blocks)
    return RaggedRows(*(jnp.asarray(x, jnp.int32) for x in (tables, starts, np.cumsum(counts) - counts, counts)))


def _seconds(
    model: LoadedModel, block_size: int, backend: str, rows: RaggedRows, tokens: int, window: int | None
) -> float:
    """Of one layer."""
    config, attend = model.config, group_attention(model, backend, window)
    shape = model.kv_shape(0, rows.page_table.size + 1, block_size)
    kv = jnp.zeros((1, *shape[1:]), model.dtype)
    q = jnp.ones((tokens, config.num_heads, config.head_dim), model.dtype)
    k = jnp.ones((tokens, config.num_kv_heads, config.head_dim), model.dtype)
    short = rows.count.shape[0] if tokens == rows.count.shape[0] else 0

    @partial(jax.jit, donate_argnums=0)
    def calls(kv: jax.Array, q: jax.Array) -> tuple[jax.Array, jax.Array]:
        def call(_: int, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return attend(state[0], k, k, state[1], 0, rows, short_rows=short)

        return jax.lax.fori_loop(0, _CALLS, call, (q, kv))

    times = []
    for _ in range(_RUNS + 1):
        begin = time.perf_counter()
        out, kv = calls(kv, q)
        out.block_until_ready()
        times.append((time.perf_counter() - begin) / _CALLS)
    return median(times[1:])
