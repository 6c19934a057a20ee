"""A scanned stack of layers over native products beside unrolled ones by plain JAX, of models of several families."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.engine.types import GenerateRequest
from jaxinfer.layers.stack import Layout
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import LoadedModel, random_model
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.step.draft_model import with_draft
from jaxinfer.runner.tuning.experts import choose_experts
from jaxinfer.runner.tuning.products import choose_products
from jaxinfer.speculation import Speculation
from tests.native import needs_native
from tests.runner.tiny import drive, greedy, make_core, tiny_model, tiny_shapes

from .dense import dense_logits
from .goldens import FAMILIES, GOLDENS
from .stacked import made

pytestmark = needs_native

TOKENS = np.random.default_rng(0).integers(0, 64, 9)
BY_DEFAULT = ("llama3", "gpt_oss", "gemma3")
"""Plain; with experts, sinks and biases; with windows."""


def config_of(family: str, quantization: str = "none") -> DecoderConfig:
    return parse_config(json.loads((GOLDENS / family / "config.json").read_text())).quantised(quantization)


def native(model: LoadedModel) -> LoadedModel:
    """The model with native products wherever they are chosen."""
    shapes = tiny_shapes(model)
    return choose_products(choose_experts(model, shapes, "auto", None), shapes, "auto", None)


def check(config: DecoderConfig, dtype: Any = jnp.float32, allowed: float = 2e-5) -> LoadedModel:
    """Logits of the two, of the same weights. Return the stacked model."""
    random = partial(random_model, config, dtype=jnp.dtype(dtype), seed=3)
    wanted = dense_logits(random(layout="unrolled"), TOKENS)
    model = native(random(layout="stacked"))
    assert model.plain_backend == "native"
    np.testing.assert_allclose(
        dense_logits(model, TOKENS, model.dispatch()), wanted, atol=allowed * np.abs(wanted).max()
    )
    return model


@pytest.mark.parametrize(
    "family", [name if name in BY_DEFAULT else pytest.param(name, marks=pytest.mark.long) for name in FAMILIES]
)
def test_a_scanned_stack_gives_the_logits_of_unrolled_layers(family: str) -> None:
    check(config_of(family))


@pytest.mark.few(4)
@pytest.mark.parametrize("quantization", ["int8", "int4", "int8-w8a8", "fp8"])
@pytest.mark.parametrize("family", ["llama3", "qwen2_moe", "deepseek_moe"])
def test_quantised_layers(family: str, quantization: str) -> None:
    """What native does not multiply, XLA does: fp8. Codes of activations may differ by one."""
    model = check(config_of(family, quantization), allowed=2e-2 if quantization.endswith("w8a8") else 2e-5)
    if any(layer.experts for layer in model.config.layers):
        assert model.experts_backend == ("xla" if quantization == "fp8" else "native")


@pytest.mark.parametrize("mlp", ["dense", "experts"])
def test_layers_of_bfloat16(mlp: str) -> None:
    config = made(mlp, "none", "stacked", "xla").config
    check(config, jnp.bfloat16, 3e-2)


@pytest.mark.parametrize("quantization", ["none", "int4"])
@pytest.mark.parametrize(("windows", "prefix", "period"), [((4, 2, 2, 2), 1, 1), ((4, 2, 4, 2, 4), 1, 2), ((4,), 0, 1)])
def test_layers_that_are_partly_not_repeated(
    windows: tuple[int, ...], prefix: int, period: int, quantization: str
) -> None:
    """Of those before the repeats, and of one alone, a matrix is a stack of its own."""
    config = made("dense", "none", "stacked", "xla").config
    kind = config.layers[0]
    layers = tuple(replace(kind, mixer=replace(kind.mixer, window=window)) for window in windows)
    model = check(replace(config, layers=layers).quantised(quantization))
    repeats = model.build(model.weights).repeats
    assert (repeats.prefix, repeats.period) == (prefix, period)


@pytest.mark.parametrize("layout", ["unrolled", "stacked"])
def test_either_layout_multiplies_natively(layout: Layout) -> None:
    model = made("experts", "int8", layout, "xla")
    wanted = dense_logits(model, TOKENS)
    model = native(model)
    found = dense_logits(model, TOKENS, model.dispatch())
    np.testing.assert_allclose(found, wanted, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_draft_model_over_native_layers_gives_the_tokens_of_xla(quantization: str) -> None:
    """Target and draft, which has the same weights, rounded where they are quantised."""
    requests = [GenerateRequest(str(i), list(range(20, 24 + 9 * i)), greedy(8)) for i in range(3)]
    plain, answers = tiny_model(), []
    ways: dict[Layout, Callable[[LoadedModel], LoadedModel]] = {"unrolled": lambda model: model, "stacked": native}
    for layout, chosen in ways.items():
        random = partial(random_model, dtype=plain.dtype, layout=layout)
        target, draft = chosen(random(plain.config)), chosen(random(plain.config.quantised(quantization)))
        drafting = Speculation(3, method="draft_model")
        shapes = tiny_shapes(target, max_num_seqs=4, max_num_batched_tokens=16, drafting=drafting)
        runner = JaxRunner(with_draft(target, draft), shapes)
        runner.warm_up(when="lazy")
        core = make_core(runner)
        answers.append({key: output.tokens for key, output in drive(core, requests).items()})
        assert core.stats().drafts.accepted_tokens > 0
    assert answers[0] == answers[1]
