"""Scales of int8 keys and values, measured: the largest of each layer over a fixed text.

Keys are kept as rope has turned them, and the text is short: of two channels that turn together the length counts,
which either may have somewhere in a longer text.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.errors import ModelError
from jaxinfer.layers.attention import Heads
from jaxinfer.models.decoder import KV, Place
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.step.group_attention import group_attention, with_backend
from jaxinfer.runner.tuning.attention_timing import trial_rows

MOST_TOKENS = 512
"""Most tokens of the text that scales are measured on."""
ROOM = 1.25
"""Factor by which a key or value may exceed the largest one measured before it is clipped."""
_LARGEST = 127
_BLOCK = 16
MEASURED_TEXT = """\
The river rose for three days. On the fourth morning the ferryman counted his ropes, found two of them missing, and \
said nothing: "Better wet than poor," his father used to say. Prices: 1,204.50 EUR (2023-11-05), 17 % more than in \
1999; see https://example.com/report?id=42&page=3.

def mean(values: list[float]) -> float:
    if not values:
        raise ValueError("values is empty")
    return sum(values) / len(values)

{"name": "Ada", "tags": ["a", "b"], "size": -1.5e-3, "ok": null}

La casa está al final de la calle; Übermorgen fahren wir nach Köln. Она прочитала письмо дважды. 今日はとても良い天気\
ですね。 我们明天再谈这个问题。 هذا كتاب جديد.

1. Preheat the oven to 200 °C. 2. Mix 250 g of flour, 2 eggs and a pinch of salt. 3. Bake for 35 minutes!!!
| x | x^2 | 2x + 1 |
|---|-----|--------|
| 3 | 9   | 7      |
So what is the integral of x² from 0 to 3? It is 9, because ∫ x² dx = x³/3.
"""


def needs_measuring(model: LoadedModel) -> bool:
    """Return whether keys and values are kept in int8 and the checkpoint has no scales for them."""
    return model.config.kv_scales is None and any(group.kv.codes == "int8" for group in model.config.kv_groups)


def with_measured_scales(model: LoadedModel, token_ids: Sequence[int]) -> LoadedModel:
    """The model with scales for int8 keys and values: by those of `token_ids`, of which the first MOST_TOKENS
    of the vocabulary count.

    Raises ModelError where none is, and for a layer whose keys or values are not finite.
    """
    return with_scales_of_stages([model], token_ids)[0]


def with_scales_of_stages(parts: Sequence[LoadedModel], token_ids: Sequence[int]) -> tuple[LoadedModel, ...]:
    """Add measured scales to a model in parts, each with some of the layers on devices of its own. Raises as
    `with_measured_scales`."""
    config, measured = parts[0].config, []
    known = [token_id for token_id in token_ids if token_id < config.vocab_size]
    given: Any = np.array(known[: min(MOST_TOKENS, config.max_position_embeddings)], np.int32)
    if not len(given):
        raise ModelError("int8 keys and values need scales, and the text to measure them on has no token of this model")
    for part in parts:
        largest, hidden = jax.jit(partial(_largest, part))(part.weights, given)
        measured.append(_measured(part, largest))
        given = np.asarray(hidden)
    return tuple(measured)


def _measured(model: LoadedModel, largest: Sequence[jax.Array]) -> LoadedModel:
    most = np.empty((model.config.num_layers, 2), np.float32)
    for group, found in zip(model.config.kv_groups, largest, strict=True):
        most[list(group.layers)] = np.asarray(found)
    if not np.isfinite(most).all():
        layer = int(np.flatnonzero(~np.isfinite(most).all(axis=1))[0])
        layer += model.config.span.first if model.config.span is not None else 0
        raise ModelError(f"keys or values of layer {layer} are not finite: int8 cannot hold them")
    return _with_scales(model, np.where(most > 0, most * (ROOM / _LARGEST), 1).astype(np.float32))


def _largest(model: LoadedModel, weights: KV, tokens: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    """[layers, 2] of each KV group: the largest magnitudes of a layer's keys and values; and hidden states [T, d]."""
    plain = replace(model, config=model.config.keeping(None))
    for group in range(len(plain.backends)):
        plain = with_backend(plain, group, "xla")
    count = len(plain.backends)
    rows = trial_rows(np.zeros(1), np.full(1, len(tokens)), _BLOCK)
    shapes = [plain.kv_shape(group, rows.page_table.size + 1, _BLOCK) for group in range(count)]
    pages = [jnp.zeros(shape, plain.kv_dtype(group)) for group, shape in enumerate(shapes)]
    largest = [jnp.zeros((len(group.layers), 2), jnp.float32) for group in plain.config.kv_groups]

    def attend(heads: Heads, kv: KV, place: Place) -> tuple[jax.Array, KV]:
        group, changed = place.group, list(kv)
        found = jnp.stack([_longest(heads.k, turned[group]), jnp.abs(heads.v).max().astype(jnp.float32)])
        changed[count + group] = kv[count + group].at[place.index].set(found)
        attention = group_attention(plain, group, place.scoring)
        out, changed[group] = attention(heads._replace(kv_scale=None), kv[group], place.index, rows, short_rows=0)
        return out, tuple(changed)

    turned = [_turned(plain, group) for group in range(count)]
    positions = jnp.arange(len(tokens), dtype=jnp.int32)
    hidden, kv = model.build(weights)(tokens, positions, (*pages, *largest), attend)
    return list(kv[count:]), hidden


def _turned(model: LoadedModel, group: int) -> set[int]:
    """Return the numbers of a head's channels that rope turns in the layers of a KV group; 0 for layers without
    rope."""
    kinds = (model.config.layers[layer].mixer for layer in model.config.kv_groups[group].layers)
    return {0 if kind.rope is None else kind.rope.turned(kind.head_dim) for kind in kinds}


def _longest(k: jax.Array, turned: set[int]) -> jax.Array:
    """The largest of keys [T, Hkv, D] at any position: channels i and i + turned / 2 turn together."""
    wide = jnp.abs(k.astype(jnp.float32))
    pairs = [jnp.hypot(wide[..., : n // 2], wide[..., n // 2 : n]).max() for n in turned if n]
    return jnp.stack([wide.max(), *pairs]).max()


def _with_scales(model: LoadedModel, scales: np.ndarray) -> LoadedModel:
    """The model with scales [layers, 2] in place of its own, which are one leaf."""
    leaves = jax.tree_util.tree_leaves_with_path(jax.tree.unflatten(model.tree, model.weights))
    (at,) = (i for i, (path, _) in enumerate(leaves) if "kv_scale" in jax.tree_util.keystr(path))
    made = jax.device_put(scales, model.weights[at].sharding)
    return replace(model, weights=(*model.weights[:at], made, *model.weights[at + 1 :]))
