"""Engines whose devices attend for different requests beside one device."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxinfer.engine.types import GenerateRequest, TokenLogprobs
from jaxinfer.models.loaded import load_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.parallel.rules import ShardingRules
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.sampling import SamplingParams
from jaxinfer.speculation import Speculation
from tests.engine.outputs import Outputs
from tests.models.goldens import GOLDENS
from tests.quantization.checkpoints import config_of
from tests.runner.tiny import drive, make_core, tiny_shapes

RULES = ShardingRules(mlp=(), expert_mlp=())  # few channels: they do not divide


def requests() -> Iterator[GenerateRequest]:
    greedy: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 1.3}
    drawn: dict[str, Any] = {"temperature": 0.9, "top_p": 0.9, "frequency_penalty": 0.4}
    for i in range(6):
        prompt = [5, 9, 33, 60, 7 + i]
        scored: dict[str, Any] = {"logprobs": 5 if i % 2 else None, "prompt_logprobs": 3 if i % 3 == 1 else None}
        asked = SamplingParams(max_tokens=8 + i, **scored, **greedy)
        yield GenerateRequest(f"g{i}", prompt * (2 + i % 3), asked)
        yield GenerateRequest(f"s{i}", prompt * 3, SamplingParams(max_tokens=8, seed=3 + i, n=1 + i % 3, **drawn))


def run(family: str, mesh: MeshConfig, **changes: Any) -> tuple[Outputs, Any]:
    """What an engine answers, and the engine."""
    config = config_of(GOLDENS / family).over(*mesh.parts)
    model = load_model(GOLDENS / family, config, dtype=jnp.dtype("float32"), mesh=make_mesh(mesh), rules=mesh.rules)
    sizes: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 64, "shards": mesh.data}
    runner = JaxRunner(model, tiny_shapes(model, **{**sizes, "few_sizes": False, **changes}))
    runner.warm_up(when="lazy")
    core = make_core(runner, clock=lambda: 0)  # with such a clock every step drafts that may
    return drive(core, list(requests())), core


def same(entry: TokenLogprobs | None, other: TokenLogprobs | None) -> bool:
    """Compare log-probabilities of one position. Which tokens are on top may differ at near ties, their
    log-probabilities may not."""
    if entry is None or other is None:
        return entry is other
    numbers = [[found.logprob, *(value for _, value in found.top)] for found in (entry, other)]
    return entry.token_id == other.token_id and np.allclose(*numbers, rtol=0, atol=1e-4)


def differences(one: Outputs, many: Outputs) -> Iterator[tuple[object, ...]]:
    for key, output in one.items():
        if many[key].tokens != output.tokens:
            yield key, output.tokens, many[key].tokens
        for found in ("logprobs", "prompt_logprobs"):
            here, there = (getattr(outputs[key], found) or [] for outputs in (one, many))
            if len(here) != len(there) or not all(map(same, here, there)):
                yield key, found, here, there


@cache
def one_device(family: str) -> tuple[Outputs, Any]:
    return run(family, ONE_DEVICE)


def check(family: str, axes: Any, **changes: Any) -> tuple[Any, Any]:
    """Compare, and return both engines."""
    one, alone = one_device(family)
    many, core = run(family, MeshConfig(axes, RULES), **changes)
    assert len(one) == 18 == len(many)
    assert sum(len(output.logprobs) for output in one.values()) > 30
    assert sum(len(output.prompt_logprobs or ()) for output in one.values()) > 20
    assert not (found := list(differences(one, many))), found
    return alone, core


def few_blocks_multi_step_and_drafts() -> None:
    axes = {"data": 2, "tensor": 2}
    check("gpt_oss", axes, blocks=26)
    check("gpt_oss", axes, decode_steps=4)
    _, core = check("gpt_oss", axes, drafting=Speculation(3, 1, 2))
    assert core.stats().drafts.draft_tokens > 5, core.stats()


def other_meshes() -> None:
    for axes in ({"data": 2}, {"data": 4}, {"data": 2, "tensor": 4}):
        check("gpt_oss", axes)


def expert_load() -> None:
    alone, core = check("qwen3_moe", {"data": 2})
    one, both = (engine.runner.status().expert_load.experts for engine in (alone, core))
    assert (both.sum(axis=1) == both.sum(axis=1)[0]).all()
    assert both.sum() > 0
    # Steps differ, and prefixes that a shard has cached: so do tokens that are computed.
    computed = [engine.stats().steps.prefill_tokens + engine.stats().steps.decode_tokens for engine in (alone, core)]
    top = core.runner.stages[0].model.config.layers[0].experts.chosen
    assert both.sum(axis=1)[0] == computed[1] * top, (both.sum(axis=1), computed, top)
    assert one.sum(axis=1)[0] == computed[0] * top
