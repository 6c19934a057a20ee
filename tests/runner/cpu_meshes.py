"""Engines that divide the CPU into the devices of their mesh. JAX has no devices yet where this is called."""

import json
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.build import build_engine
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.errors import ParameterError
from jaxinfer.llm import engine_config
from jaxinfer.runner.fit import fitting
from tests.runner.tiny import drive, greedy

SMALL: dict[str, Any] = {"max_num_seqs": 1, "max_num_batched_tokens": 16, "max_model_len": 48}
DEMO: dict[str, Any] = {"max_num_seqs": 2, "max_num_batched_tokens": 64, "max_model_len": 128}
UNKEPT: dict[str, Any] = {"compile": "lazy", "compile_cache_dir": "off"}


def engine(model: str, **flags: Any) -> tuple[Any, dict[tuple[str, int], list[int]]]:
    """An engine and its answers."""
    core = build_engine(engine_config(model, None, {**SMALL, **UNKEPT, **flags})).core
    requests = [GenerateRequest(str(n), list(range(5, 5 + n)), greedy(6)) for n in (3, 20)]
    return core, {key: output.tokens for key, output in drive(core, requests).items()}


def parts(core: Any, *name: str) -> list[int]:
    """In how many parts each axis of a weight of the first block lies."""
    model = core.runner.stages[0].model
    weights = zip(model.weights, model.plan.weights, strict=True)
    ((leaf, axes),) = [(leaf, one.axes) for leaf, one in weights if one.path == ("blocks", 0, *name)]
    sizes = zip(axes, leaf.shape, leaf.sharding.shard_shape(leaf.shape), strict=True)
    return [whole // part for axis, whole, part in sizes if axis != "layers"]


def compare_experts(model: str, own: str, more: bool) -> None:
    four, tokens = engine(model, mesh=own)
    assert len(jax.devices()) == 4 == four.runner.stages[0].model.mesh.size, jax.devices()
    assert parts(four, "mlp", "experts_down") == [4, 1, 1]
    assert parts(four, "mixer", "qkv") == [2, 1, 1, 1]

    channels, also = engine(model, mesh="tp2")
    assert also == tokens, (also, tokens)
    assert parts(channels, "mlp", "experts_down") == [1, 1, 2]
    experts, also = engine(model, tensor_parallel_size=2, enable_expert_parallel=True)
    assert also == tokens, (also, tokens)
    assert parts(experts, "mlp", "experts_down") == [2, 1, 1]
    one, also = engine(model)
    assert also == tokens, (also, tokens)
    assert sum(map(len, tokens.values())) > 6, tokens
    assert one.runner.stages[0].model.mesh.size == 1
    if more:
        compare_layouts(model, tokens)


def compare_layouts(model: str, tokens: dict[tuple[str, int], list[int]]) -> None:
    """Stacked layers, stages, and short types."""
    looped, also = engine(model, mesh="tp2", scan_layers="on")
    assert also == tokens, (also, tokens)
    assert looped.runner.stages[0].model.layout == "stacked"
    staged, also = engine(model, mesh="pp2", pipeline_layers="0,1")
    assert also == tokens, (also, tokens)
    assert [stage.model.config.num_layers for stage in staged.runner.stages] == [1, 1]
    short: dict[str, Any] = {"kv_cache_dtype": "fp8", "quantization": "int8"}
    _, also = engine(model, pipeline_parallel_size=2, tensor_parallel_size=2, **short)
    _, right = engine(model, **short)
    assert also == right, (also, right)


def compare_rules(model: str, quantization: str, *own: str) -> None:
    found = [engine(model, mesh=mesh, quantization=quantization)[1] for mesh in own]
    assert found == [engine(model, quantization=quantization)[1]] * len(own), found


def compare_demo() -> None:
    messages = [{"role": "user", "content": "What is 3 plus 4?"}]

    def answer(**flags: Any) -> Any:
        llm = LLM("demo", **DEMO, **UNKEPT, **flags)
        return llm.chat(messages, SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)[0].outputs[0].token_ids

    two = answer(mesh="tp2")
    assert len(two) > 1, two
    assert two == answer(), two
    with pytest.raises(ParameterError) as raised:
        LLM("demo", **DEMO, **UNKEPT, tensor_parallel_size=4)
    told = "mesh: tensor=4 needs 4 devices; JAX has 2 of cpu here, and makes no more once it has any"
    assert str(raised.value).startswith(told)
    with pytest.raises(ParameterError) as raised:
        LLM("demo", **DEMO, **UNKEPT, tensor_parallel_size=2, enable_expert_parallel=True)
    assert str(raised.value) == "enable_expert_parallel: the model has no experts; leave it out"


def check_budget(own: str) -> None:
    fitting.machine_memory, block = lambda: 128 << 20, 16 * 6 * 2 * 2 * 32 * 4
    for mesh, copies in (("tp2", 1), ("single", 1), (own, 2)):
        engine: Any = LLM("demo", **DEMO, **UNKEPT, mesh=mesh, dtype="float32").engine
        on_all = sum(shard.data.nbytes for array in engine.runner.stages[0].kv for shard in array.addressable_shards)
        assert on_all == engine.info.num_blocks * block * copies, mesh
        assert (16 << 20) * 0.95 < on_all <= 16 << 20, (mesh, on_all)


def compare_trained(folder: str) -> None:
    cases = json.loads((Path(folder) / "greedy_reference.json").read_text())["cases"]
    sizes: dict[str, Any] = {"max_num_seqs": 2, "max_num_batched_tokens": 32, "max_model_len": 256}
    llm = LLM(folder, mesh="tp4", decode_steps=4, dtype="float32", compile_cache_dir="off", **sizes)
    asked = SamplingParams(temperature=0, max_tokens=64)
    results = llm.generate([case["prompt"] for case in cases], asked, use_tqdm=False)
    assert [result.outputs[0].token_ids for result in results] == [case["new_token_ids"] for case in cases]
    runner: Any = llm.engine
    assert runner.runner.status().compiles_after_ready == 0
