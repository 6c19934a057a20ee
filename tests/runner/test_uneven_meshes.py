"""Engines over meshes that heads and vocabulary do not divide over, in a process of its own with eight CPUs."""

import pytest

from tests.runner.devices import run_on_devices

_PRELUDE = """
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.models.loaded import load_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.parallel.rules import ShardingRules
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.sampling import SamplingParams
from tests.models.goldens import GOLDENS
from tests.models.test_uneven_shards import config_of
from tests.runner.tiny import drive, make_core, tiny_shapes
import functools
import jax.numpy as jnp

RULES = ShardingRules(mlp=(), expert_mlp=())  # few channels: they do not divide
ASKED = [
    SamplingParams(temperature=0.0, max_tokens=8, repetition_penalty=1.3, logprobs=5),
    SamplingParams(temperature=0.9, max_tokens=8, seed=3, top_p=0.9, frequency_penalty=0.4, n=2),
]

@functools.cache
def answers(family, devices, **changes):
    mesh = MeshConfig({"tensor": devices}, RULES) if devices > 1 else ONE_DEVICE
    config = config_of(family).over(*mesh.parts)
    model = load_model(GOLDENS / family, config, dtype=jnp.dtype("float32"), mesh=make_mesh(mesh), rules=mesh.rules)
    shapes = tiny_shapes(model, max_num_seqs=2, max_num_batched_tokens=16, max_model_len=64, **changes)
    runner = JaxRunner(model, shapes)
    runner.warm_up(lazy=True)
    requests = [GenerateRequest(str(i), [5, 9, 33, 60, 7 + i] * 3, params) for i, params in enumerate(ASKED)]
    outputs = {key: output.tokens for key, output in drive(make_core(runner), requests).items()}
    assert all(0 <= token < 96 for tokens in outputs.values() for token in tokens), outputs
    return outputs

def check(family, devices, **changes):
    one, many = answers(family, 1), answers(family, devices, **changes)
    assert len(one) == 3 and many == one, (family, devices, many, one)
"""


@pytest.mark.long
def test_copied_heads_and_empty_ones():
    """One KV head on 4 devices; on 5 a head of zeros, and 4 rows of the table that no token has."""
    run_on_devices(_PRELUDE + "check('mistral', 4); check('mistral', 5, decode_steps=4)", 5)


@pytest.mark.long
@pytest.mark.parametrize("family", ["qwen2", "gpt_oss", "gemma3", "cohere"])
def test_two_kv_heads_on_four_devices(family: str):
    run_on_devices(_PRELUDE + f"check({family!r}, 4)", 4)
