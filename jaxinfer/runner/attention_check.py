"""Is a backend right on this device? Compared with `xla` on the model's own heads before it may serve."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.attention_timing import trial_rows
from jaxinfer.runner.group_attention import group_attention

_ERROR = {"float32": 1e-3}
"""Largest difference, as a share of the largest result; of other types, 2e-2."""
_LONGEST = 1500
"""Tokens of the longest row: enough that kernels cut a row's keys and merge what they cut."""


def check_attention(model: LoadedModel, shapes: EngineShapes, backend: str) -> None:
    """One step of random values by `backend` and by `xla`: short rows, of which two end at a block's edges and one is
    long, and a prompt's chunk.

    A kernel may compile and be wrong on a device that nobody has tried. Raises ValueError where results, or keys
    and values, differ, and what compiling or running raises.
    """
    size, most = shapes.block_size, min(_LONGEST, shapes.max_model_len)
    starts = np.minimum([size - 1, size, most - 1, most // 3], most - 1)
    counts = np.array([1, 1, 1, min(most - starts[3], shapes.max_num_batched_tokens)])
    for window in {group.window for group in shapes.groups}:
        out, kv = _attended(model, size, backend, window, starts, counts)
        want, kept = _attended(model, size, "xla", window, starts, counts)
        error, allowed = np.abs(out - want).max() / np.abs(want).max(), _ERROR.get(model.dtype.name, 2e-2)
        if not error <= allowed:
            raise ValueError(f"its results differ from xla's by {error:.1g} of the largest, {allowed:g} is allowed")
        if not np.array_equal(kv[:, 1:], kept[:, 1:]):
            raise ValueError("it does not write the keys and values that xla writes")


def _attended(
    model: LoadedModel, block_size: int, backend: str, window: int | None, starts: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Results, and keys and values with the axis of blocks second, as float32."""
    config, rng, tokens = model.config, np.random.default_rng(0), int(counts.sum())
    rows = trial_rows(starts, counts, block_size)
    shape = model.kv_shape(0, rows.page_table.size + 1, block_size)
    kv = rng.standard_normal((1, *shape[1:]), np.float32)
    heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    q, k, v = (rng.standard_normal((tokens, count, config.head_dim), np.float32) for count in heads)
    attend = jax.jit(group_attention(model, backend, window), donate_argnums=3)
    arrays = (jnp.asarray(x, model.dtype) for x in (q, k, v, kv))
    out, kv = attend(*arrays, jnp.int32(0), rows, short_rows=jnp.int32(3))
    return np.asarray(out, np.float32), np.moveaxis(np.asarray(kv, np.float32), model.kv_layout.page_axis, 1)
