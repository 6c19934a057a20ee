"""Is a backend right on this device? Compared with `xla` on the model's own heads before it may serve."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxinfer_kernels.pages import as_type

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.step.group_attention import group_attention, with_backend
from jaxinfer.runner.tuning.attention_timing import TRIAL_SCALE, trial_heads, trial_kind, trial_rows

_ERROR = {"float32": 1e-3}
"""Largest difference, as a share of the largest result; of other types, 2e-2."""
_LONGEST = 1500
"""Tokens of the longest row: enough that kernels cut a row's keys and merge what they cut."""


def check_attention(model: LoadedModel, shapes: EngineShapes, group: int) -> None:
    """One step of random values by the backend of a KV group and by `xla`, on the group's heads: short rows, of which
    two end at a block's edges and one is long, and a prompt's chunk.

    A kernel may compile and be wrong on a device that nobody has tried. Raises ValueError where results, or keys
    and values, differ, and what compiling or running raises.
    """
    size, most = shapes.block_size, min(_LONGEST, shapes.max_model_len)
    starts = np.minimum([size - 1, size, most - 1, most // 3], most - 1)
    counts = np.array([1, 1, 1, min(most - starts[3], shapes.max_num_batched_tokens)])
    out, kv = _attended(model, size, group, starts, counts)
    want, kept = _attended(with_backend(model, group, "xla"), size, group, starts, counts)
    error, allowed = np.abs(out - want).max() / np.abs(want).max(), _ERROR.get(model.dtype.name, 2e-2)
    if not error <= allowed:
        raise ValueError(f"its results differ from xla's by {error:.1g} of the largest, {allowed:g} is allowed")
    if not np.array_equal(kv[:, 1:], kept[:, 1:]):
        raise ValueError("it does not write the keys and values that xla writes")


def _attended(
    model: LoadedModel, block_size: int, group: int, starts: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Results, and keys and values with the axis of blocks second, as float32."""
    heads, rows = trial_heads(model, group, int(counts.sum())), trial_rows(starts, counts, block_size)
    shape = model.kv_shape(group, rows.page_table.size + 1, block_size)
    values = np.random.default_rng(1).standard_normal((1, *shape[1:]), np.float32)
    kept = values if heads.kv_scale is None else values / TRIAL_SCALE
    kv = as_type(jnp.asarray(kept).astype(model.kv_type(group)), model.kv_dtype(group))
    attend = jax.jit(group_attention(model, group, trial_kind(model, group).scoring), donate_argnums=1)
    out, kv = attend(heads, kv, jnp.int32(0), rows, short_rows=jnp.int32(3))
    kept = np.asarray(as_type(kv, model.kv_type(group)), np.float32)
    return np.asarray(out, np.float32), np.moveaxis(kept, model.backends[group].layout.page_axis, 1)
