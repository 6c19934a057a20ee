"""Engines over meshes that heads and vocabulary do not divide over, beside one device."""

from functools import cache
from typing import Any

import jax.numpy as jnp

from jaxinfer.engine.types import GenerateRequest
from jaxinfer.models.loaded import load_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.parallel.rules import ShardingRules
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.sampling import SamplingParams
from tests.models.goldens import GOLDENS
from tests.quantization.checkpoints import config_of
from tests.runner.tiny import drive, make_core, tiny_shapes

RULES = ShardingRules(mlp=(), expert_mlp=())  # few channels: they do not divide
ASKED = [
    SamplingParams(temperature=0.0, max_tokens=8, repetition_penalty=1.3, logprobs=5),
    SamplingParams(temperature=0.9, max_tokens=8, seed=3, top_p=0.9, frequency_penalty=0.4, n=2),
]


@cache
def answers(family: str, devices: int, **changes: Any) -> dict[tuple[str, int], list[int]]:
    mesh = MeshConfig({"tensor": devices}, RULES) if devices > 1 else ONE_DEVICE
    config = config_of(GOLDENS / family).over(*mesh.parts)
    model = load_model(GOLDENS / family, config, dtype=jnp.dtype("float32"), mesh=make_mesh(mesh), rules=mesh.rules)
    shapes = tiny_shapes(model, max_num_seqs=2, max_num_batched_tokens=16, max_model_len=64, **changes)
    runner = JaxRunner(model, shapes)
    runner.warm_up(when="lazy")
    requests = [GenerateRequest(str(i), [5, 9, 33, 60, 7 + i] * 3, params) for i, params in enumerate(ASKED)]
    outputs = {key: output.tokens for key, output in drive(make_core(runner), requests).items()}
    assert all(0 <= token < 96 for tokens in outputs.values() for token in tokens), outputs
    return outputs


def check(family: str, *cases: tuple[int, dict[str, Any]]) -> None:
    """cases: devices, and changes of the engine's sizes."""
    one = answers(family, 1)
    assert len(one) == 3
    for devices, changes in cases:
        many = answers(family, devices, **changes)
        assert many == one, (family, devices, many, one)
