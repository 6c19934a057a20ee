"""Engines over quantised models: what they generate in chunks, with prefix hits and beside others, is what the model
itself finds likeliest, token by token."""

import logging
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.build import build_engine
from jaxinfer.config import CacheConfig, DType, EngineConfig, ModelConfig, Quantization, RunnerConfig
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.errors import ParameterError
from jaxinfer.models.loaded import LoadedModel, load_model
from jaxinfer.runner.jax_runner import JaxRunner
from tests.models.goldens import GOLDENS, load
from tests.models.paged import PagedModel, Part
from tests.native import needs_native
from tests.quantization.checkpoints import LLAMA, loaded, made
from tests.quantization.forms import FORMS
from tests.runner.tiny import drive, greedy, make_core, tiny_shapes
from tests.turns import one_of

BLOCK, TOKENS = 4, 24
PAIRS = [("llama3", "int4"), ("gemma3", "int8"), ("qwen2_moe", "int8-w8a8"), ("llama3", "fp8-w8a8"), ("gpt_oss", "fp8")]


def likeliest(model: LoadedModel, prompt: list[int], count: int) -> list[int]:
    paged, tokens = PagedModel(model), list(prompt)
    for _ in range(count):
        done = len(tokens) if len(tokens) > len(prompt) else 0
        new = np.array(tokens[done - 1 if done else 0 :], np.int32)
        start = len(tokens) - len(new)
        tokens.append(int(paged.step([Part(0, new, start), Part(1, new[:0], 0)])[0][-1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize(("family", "name"), one_of(5, PAIRS))
def test_tokens_are_the_models_own(family: str, name: str) -> None:
    folder = GOLDENS / family
    model = load_model(folder, load(folder).config.quantised(name), dtype=jnp.float32)
    prompt = np.load(folder / "golden.npz")["prompt"].tolist()
    wanted = likeliest(model, prompt, TOKENS)
    shapes = tiny_shapes(model, max_num_seqs=3, max_num_batched_tokens=8, blocks=60)
    runner = JaxRunner(model, shapes)
    runner.warm_up(when="lazy")
    core = make_core(runner)

    first = drive(core, [GenerateRequest("first", prompt, greedy(TOKENS))])["first", 0]
    longer = [*prompt, *wanted[:10]]
    others = [GenerateRequest("second", longer, greedy(TOKENS - 10)), GenerateRequest("third", prompt, greedy(TOKENS))]
    found = drive(core, others)
    assert (first.tokens, found["second", 0].tokens, found["third", 0].tokens) == (wanted, wanted[10:], wanted)
    assert found["second", 0].cached >= BLOCK


@needs_native
@pytest.mark.parametrize(
    ("name", "said"), [("none", "float32 on cpu"), ("int8", "float32 (weights in int8 per row) on cpu")]
)
def test_the_log_says_how_weights_are_held(name: Quantization, said: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    build_engine(config_of(GOLDENS / "llama3", name))
    assert f"{said}, attention native; " in caplog.text


@needs_native
@pytest.mark.long
def test_a_checkpoint_that_is_quantised_already(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    folder = made(LLAMA, *FORMS["w4a16"]).write(tmp_path)
    core = build_engine(config_of(folder, "none")).core
    assert (core.info.dtype, core.info.weights) == ("float32", "int4 per 64, zeros")
    assert "float32 (weights in int4 per 64, zeros) on cpu, attention native; " in caplog.text
    prompt = list(range(3, 15))
    found = drive(core, [GenerateRequest("first", prompt, greedy(TOKENS))])["first", 0]
    assert found.tokens == likeliest(loaded(folder), prompt, TOKENS)
    with pytest.raises(ParameterError, match="quantization: int8: the checkpoint is quantised already"):
        build_engine(config_of(folder, "int8"))


@pytest.mark.parametrize(
    ("form", "held"), [("gptq-orders", "float32 and int4 per 64, ordered"), ("gptq-order", "int4 per 64, ordered")]
)
def test_weights_that_are_read_as_values_are_told_as_such(tmp_path: Path, form: str, held: str) -> None:
    """q, k and v in different orders."""
    model = loaded(made(LLAMA, *FORMS[form]).write(tmp_path))
    assert model.config.held_in(str(model.dtype)) == held


@pytest.mark.long
@pytest.mark.parametrize("form", ["w4a16", "gptq-order"])
def test_bfloat16(tmp_path: Path, form: str) -> None:
    """Steps of one row and of several are different products on a CPU."""
    core = build_engine(config_of(made(LLAMA, *FORMS[form]).write(tmp_path), "none", "bfloat16")).core
    found = drive(core, [GenerateRequest("first", list(range(3, 15)), greedy(TOKENS))])["first", 0]
    assert (len(found.tokens), found.error) == (TOKENS, None)


def config_of(folder: Path, name: Quantization, dtype: DType = "float32") -> EngineConfig:
    return EngineConfig(
        model=str(folder),
        load=ModelConfig(dtype=dtype, max_model_len=64, quantization=name),
        cache=CacheConfig(block_size=BLOCK, num_blocks=20),
        runner=RunnerConfig(compile="lazy", compile_cache_dir="off"),
    )
