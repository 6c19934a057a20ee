"""Random models, the layers seam, sharding over a mesh, and the shapes that cross to the runner."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.errors import ParameterError
from jaxinfer.layers.stack import Repeats, repeats_of
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models import weight
from jaxinfer.models.loaded import load_model, random_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import MeshConfig
from tests.models.over_two_devices import compare
from tests.runner.devices import run_on_devices

from .dense import CONFIG, TOKENS, dense_logits
from .goldens import GOLDENS


@pytest.mark.long
def test_layouts_give_equal_results():
    unrolled, stacked = (random_model(CONFIG, dtype=jnp.float32, seed=3, layout=x) for x in ("unrolled", "stacked"))
    assert len(stacked.weights) < len(unrolled.weights)
    np.testing.assert_allclose(dense_logits(unrolled, TOKENS), dense_logits(stacked, TOKENS), atol=1e-4)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("family", "quantization"), [("llama3", "none"), ("llama3", "int4"), ("qwen3_moe", "none"), ("qwen3_moe", "int8")]
)
def test_of_a_large_stack_one_layer_is_read_at_a_time(family: str, quantization: str, monkeypatch):
    config = parse_config(json.loads((GOLDENS / family / "config.json").read_text())).quantised(quantization)

    def read(large: int) -> tuple[tuple[jax.Array, ...], list[int]]:
        monkeypatch.setattr(weight, "_LARGE", large)
        done: list[int] = []
        options = {"dtype": jnp.dtype("float32"), "layout": "stacked", "progress": lambda now, _: done.append(now)}
        return load_model(GOLDENS / family, config, **options).weights, done

    (at_once, steps), (one_by_one, more_steps) = read(2**60), read(0)
    for expected, leaf in zip(at_once, one_by_one, strict=True):
        np.testing.assert_array_equal(leaf, expected)
    assert more_steps[-1] == steps[-1]
    assert len(more_steps) > len(steps)


@pytest.mark.few(1)
@pytest.mark.parametrize(("tied", "hidden"), [(True, 64), (False, 256)])
def test_random_logits_have_a_deviation_of_three(tied: bool, hidden: int):
    config = replace(CONFIG, hidden_size=hidden, tie_word_embeddings=tied)
    logits = dense_logits(random_model(config, dtype=jnp.float32, seed=1), TOKENS)
    assert 2 < logits.std() < 4
    other = dense_logits(random_model(config, dtype=jnp.float32, seed=2), TOKENS)
    assert np.abs(logits - other).max() > 1


def test_random_model_does_not_repeat_its_input():
    logits = dense_logits(random_model(replace(CONFIG, tie_word_embeddings=True), dtype=jnp.float32), TOKENS)
    assert (logits.argmax(axis=-1) == TOKENS).mean() < 0.5


def test_head_is_the_embedding_where_it_is_tied():
    tied = random_model(replace(CONFIG, tie_word_embeddings=True), dtype=jnp.float32)
    assert any(leaf is tied.head[0] for leaf in tied.weights)
    untied = random_model(CONFIG, dtype=jnp.float32)
    assert not any(leaf is untied.head[0] for leaf in untied.weights)


def test_kv_shapes():
    model = random_model(CONFIG, dtype=jnp.bfloat16)
    assert model.kv_shape(0, 10, 16) == (2, 2, 10, 16, 2, 16)
    assert model.kv_shape(1, 10, 16) == (4, 2, 10, 16, 2, 16)
    assert {leaf.dtype for leaf in (*model.weights, *model.head)} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize(
    ("kinds", "repeats"),
    [
        ("a", (0, 1, 1)),
        ("aaa", (0, 1, 3)),
        ("abab", (0, 2, 2)),
        ("abb", (1, 1, 2)),
        ("aab", (0, 3, 1)),
        ("abbbbbb", (1, 1, 6)),
        ("aaabaaabaa", (2, 4, 2)),
        ("abcdabcd", (0, 4, 2)),
    ],
)
def test_the_fewest_blocks_make_up_all_layers(kinds: str, repeats: tuple[int, int, int]):
    found = repeats_of(kinds, "stacked")
    assert found == Repeats(*repeats)
    layers = sorted((layer, block) for block in range(found.blocks) for layer in found.layers_of(block))
    assert "".join(kinds[block] for _, block in layers) == kinds
    assert [layer for layer, _ in layers] == list(range(len(kinds)))
    assert repeats_of(kinds, "unrolled").layers == len(kinds)


@pytest.mark.parametrize("kinds", ["abbabb", "cabab", "cabbcabb"])
def test_ordinals_count_members_across_repeats(kinds: str):
    repeats = repeats_of(kinds, "stacked")
    for letter in set(kinds):
        members = [layer for layer, kind in enumerate(kinds) if kind == letter]
        for block in range(repeats.blocks):
            found = [repeats.ordinal(members, block, r) for r in range(len(repeats.layers_of(block)))]
            wanted = [members.index(x) if x in members else None for x in repeats.layers_of(block)]
            assert found == wanted


def test_mesh_larger_than_the_machine_is_refused():
    with pytest.raises(ParameterError, match="needs 4096 devices"):
        make_mesh(MeshConfig({"tensor": 4096}))
    with pytest.raises(ParameterError, match="tensor: 0 must be a whole number from 1"):
        MeshConfig({"tensor": 0})


@pytest.mark.long
def test_two_devices_equal_one():
    run_on_devices(compare, 2)
