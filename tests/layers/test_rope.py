"""Rotary frequencies against transformers and against float64."""

import math
from decimal import Decimal
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.layers.rope import inverse_frequencies, rotation
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.registry import parse_config
from jaxinfer.model_config.rope_config import RopeConfig

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 2048}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": np.linspace(1.0, 1.5, 32).tolist(),
    "long_factor": np.geomspace(1.0, 64.0, 32).tolist(),
    "original_max_position_embeddings": 2048,
}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "factor": 8.0}
KINDS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 1e6},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5},
    "llama3": {**LLAMA3, "rope_theta": 5e5, "original_max_position_embeddings": 1024},
    "yarn": YARN,
    "yarn betas": {**YARN, "beta_fast": 16, "beta_slow": 2},
    "yarn attention": {**YARN, "attention_factor": 1.25},
    "yarn scales": {**YARN, "mscale": 0.707, "mscale_all_dim": 1.0},
    "yarn one scale": {**YARN, "mscale": 0.707},
    "yarn not truncated": {**YARN, "truncate": False, "rope_theta": 150000.0},
    "yarn of Qwen": {**YARN, "rope_theta": 1e6, "original_max_position_embeddings": 32768},
    "yarn by ratio": {**YARN, "factor": None},
    "yarn without original": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0},
    "yarn on few tokens": {**YARN, "original_max_position_embeddings": 16},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.5},
    "longrope": LONGROPE,
    "longrope with a factor": {**LONGROPE, "factor": 8.0},
    "longrope attention": {**LONGROPE, "attention_factor": 1.25},
    "longrope on its own context": {**LONGROPE, "original_max_position_embeddings": 4096},
}
CONTEXT = 4096
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": CONTEXT,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5,
    "vocab_size": 100,
}


def rope_of(config: DecoderConfig) -> RopeConfig:
    (layer,) = config.layers
    assert layer.mixer.rope is not None
    return layer.mixer.rope


def rope_with(parameters: dict[str, Any]) -> RopeConfig:
    return rope_of(parse_config({**CONFIG, "rope_parameters": parameters}))


@pytest.mark.parity
@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("kind", KINDS)
def test_tables_equal_transformers(kind: str, spelling: str) -> None:
    """Cosines and sines of whole sequences up to the declared context, and of `dynamic` token by token beyond it.

    `longrope`: of a model that serves sequences as long as each and no longer.
    """
    torch = pytest.importorskip("torch", reason="the parity extra is not installed")
    transformers = pytest.importorskip("transformers", reason="the parity extra is not installed")
    parameters = dict(KINDS[kind])
    raw: dict[str, Any] = {spelling: parameters}
    if spelling == "rope_scaling":
        raw = {"rope_theta": parameters.pop("rope_theta"), "rope_scaling": parameters}
    config = parse_config({**CONFIG, **raw})
    theirs = transformers.LlamaConfig(**{**CONFIG, **raw, "head_dim": 64})
    table = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(theirs)
    pieces = [torch.arange(length) for length in (1, 7, 2048, CONTEXT)]
    if kind == "dynamic":
        pieces += [torch.tensor([position]) for position in (CONTEXT, CONTEXT + 1, 5000, 8191, 10239)]
        pieces += [torch.arange(9)]  # short again: the first table is back
    for positions in pieces:
        cos, sin = table(torch.zeros(1, 1, 64), positions[None])
        rope = rope_of(config.at_context(int(positions.max()) + 1))
        ours = rotation(rope, 64, jnp.asarray(positions.numpy(), jnp.int32))
        # An angle of thousands of radians has that much of a float32's last bit.
        atol = 3e-7 * max(10, int(positions.max()))
        np.testing.assert_allclose(ours.cos, cos[0, :, :32].numpy(), atol=atol)
        np.testing.assert_allclose(ours.sin, sin[0, :, :32].numpy(), atol=atol)


@pytest.mark.parity
@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_equal_transformers(kind: str) -> None:
    pytest.importorskip("torch", reason="the parity extra is not installed")
    transformers = pytest.importorskip("transformers", reason="the parity extra is not installed")
    theirs = transformers.LlamaConfig(**{**CONFIG, "rope_parameters": dict(KINDS[kind]), "head_dim": 64})
    table = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(theirs)
    rope = rope_of(parse_config({**CONFIG, "rope_parameters": KINDS[kind]}).at_context(1))
    np.testing.assert_allclose(inverse_frequencies(rope, 64), table.inv_freq.numpy(), rtol=5e-7)
    assert rope.attention_factor == pytest.approx(table.attention_scaling, rel=1e-9)


@pytest.mark.parametrize(("beta_fast", "beta_slow"), [(32.0, 1.0), (8.0, 2.0)])
def test_yarn_keeps_fast_pairs_and_divides_slow_ones(beta_fast: float, beta_slow: float) -> None:
    rope = rope_with({**YARN, "beta_fast": beta_fast, "beta_slow": beta_slow})
    plain = 1e4 ** -(np.arange(0, 64, 2, dtype=np.float64) / 64)
    turns = 2048 * plain / (2 * math.pi)
    found = inverse_frequencies(rope, 64) / plain
    np.testing.assert_allclose(found[turns > beta_fast * 1.4], 1.0, rtol=1e-6)
    np.testing.assert_allclose(found[turns < beta_slow / 1.4], 0.25, rtol=1e-6)
    between = found[(turns < beta_fast / 1.4) & (turns > beta_slow * 1.4)]
    assert len(between) > 1
    assert (np.diff(between) < 0).all()
    assert rope.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    cos, sin = rotation(rope, 64, jnp.arange(50))
    np.testing.assert_allclose(cos**2 + sin**2, rope.attention_factor**2, rtol=1e-5)


@pytest.mark.parametrize(("context", "name"), [(2048, "short_factor"), (2049, "long_factor")])
def test_longrope_divides_each_pair_by_its_own_factor(context: int, name: str) -> None:
    rope = rope_of(parse_config({**CONFIG, "rope_parameters": LONGROPE}).at_context(context))
    positions = np.array([0, 1, 100, 2047])
    angles = positions[:, None] * 1e4 ** -(np.arange(0, 64, 2, dtype=np.float64) / 64) / np.array(LONGROPE[name])
    scale = math.sqrt(1 + math.log(2) / math.log(2048))  # 4096 tokens are twice the original 2048
    cos, sin = rotation(rope, 64, jnp.asarray(positions, jnp.int32))
    np.testing.assert_allclose(cos, scale * np.cos(angles), atol=3e-4)
    np.testing.assert_allclose(sin, scale * np.sin(angles), atol=3e-4)


def test_dynamic_depends_on_the_position_alone() -> None:
    rope = rope_with(KINDS["dynamic"])
    positions = np.array([0, 1, CONTEXT - 1, CONTEXT, CONTEXT + 1, 7000, 10239])
    together = rotation(rope, 64, jnp.asarray(positions, jnp.int32))
    for i, position in enumerate(positions):
        length = max(position + 1, CONTEXT)
        theta = 1e4 * (2.5 * length / CONTEXT - 1.5) ** (64 / 62)
        angles = position * theta ** -(np.arange(0, 64, 2, dtype=np.float64) / 64)
        np.testing.assert_allclose(together.cos[i], np.cos(angles), atol=1e-6 * max(10, position))
        alone = rotation(rope, 64, jnp.asarray([position], jnp.int32))
        np.testing.assert_allclose(alone.cos[0], together.cos[i], atol=1e-6)
    plain = rotation(RopeConfig(), 64, jnp.arange(CONTEXT))
    np.testing.assert_array_equal(rotation(rope, 64, jnp.arange(CONTEXT)).cos, plain.cos)


@pytest.mark.parametrize("theta", [1e4, 5e5, 1e6, 1.5e5, 1e7])
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
def test_frequencies_are_the_same_on_every_processor(theta: float, head_dim: int) -> None:
    """Powers are those of 28 digits, rounded."""
    rope = RopeConfig(kind="default", theta=theta)
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    powers = [float(Decimal(theta) ** Decimal(float(exponent))) for exponent in exponents]
    expected = np.float32(1.0) / np.array(powers, np.float32)
    np.testing.assert_array_equal(inverse_frequencies(rope, head_dim), expected)
