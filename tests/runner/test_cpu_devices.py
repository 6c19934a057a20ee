"""Engines over devices that they make of the CPU, by a mesh's name, in processes whose JAX has none yet."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.material import material
from tests.models.goldens import GOLDENS

_ENGINES = """
import sys
from jaxinfer.build import build_engine
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.llm import engine_config
from tests.runner.tiny import drive, greedy

model, *own = sys.argv[1:]
SMALL = dict(max_num_seqs=1, max_num_batched_tokens=16, max_model_len=48, lazy_compile=True, compile_cache_dir="off")

def engine(**flags):
    core = build_engine(engine_config(model, None, {**SMALL, **flags})).core
    requests = [GenerateRequest(str(n), list(range(5, 5 + n)), greedy(6)) for n in (3, 20)]
    return core, {key: output.tokens for key, output in drive(core, requests).items()}

def parts(core, name):
    model = core.runner.model
    (leaf, axes), = [(leaf, one.axes) for leaf, one in zip(model.weights, model.plan.weights, strict=True)
                     if one.path == ("blocks", 0, *name)]
    sizes = zip(axes, leaf.shape, leaf.sharding.shard_shape(leaf.shape), strict=True)
    return [whole // part for axis, whole, part in sizes if axis != "layers"]

four, tokens = engine(mesh=own[0])
import jax
assert len(jax.devices()) == 4 == four.runner.model.mesh.size, jax.devices()
assert parts(four, ("mlp", "experts_down")) == [4, 1, 1]
assert parts(four, ("attention", "qkv")) == [2, 1, 1, 1]

channels, also = engine(mesh="tp2")
assert also == tokens, (also, tokens)
assert parts(channels, ("mlp", "experts_down")) == [1, 1, 2]
experts, also = engine(tensor_parallel_size=2, enable_expert_parallel=True)
assert also == tokens, (also, tokens)
assert parts(experts, ("mlp", "experts_down")) == [2, 1, 1]
one, also = engine()
assert also == tokens and sum(map(len, tokens.values())) > 6, (also, tokens)
assert one.runner.model.mesh.size == 1
"""


_OTHER_RULES = """
found = [engine(mesh=mesh)[1] for mesh in own]
assert found == [engine()[1]] * len(own), found
"""


_MORE = """
looped, also = engine(mesh="tp2", scan_layers="on")
assert also == tokens, (also, tokens)
assert looped.runner.model.layout == "stacked"
staged, also = engine(mesh="pp2", pipeline_layers="0,1")
assert also == tokens, (also, tokens)
assert [stage.model.config.num_layers for stage in staged.runner.stages] == [1, 1]
_, also = engine(pipeline_parallel_size=2, tensor_parallel_size=2, kv_cache_dtype="fp8", quantization="int8")
_, right = engine(kv_cache_dtype="fp8", quantization="int8")
assert also == right, (also, right)
"""


_DEMO = """
import os, sys
from jaxinfer import LLM, SamplingParams
from jaxinfer.errors import ParameterError

SMALL = dict(max_num_seqs=2, max_num_batched_tokens=64, max_model_len=128, lazy_compile=True, compile_cache_dir="off")
greedy, messages = SamplingParams(temperature=0, max_tokens=8), [{"role": "user", "content": "What is 3 plus 4?"}]

def answer(**flags):
    return LLM("demo", **SMALL, **flags).chat(messages, greedy, use_tqdm=False)[0].outputs[0].token_ids

two = answer(mesh="tp2")
assert len(two) > 1 and two == answer(), two
try:
    LLM("demo", **SMALL, tensor_parallel_size=4)
except ParameterError as error:
    told = "mesh: tensor=4 needs 4 devices; JAX has 2 of cpu here, and makes no more once it has any"
    assert str(error).startswith(told), error
else:
    raise AssertionError("there are two devices")
try:
    LLM("demo", **SMALL, tensor_parallel_size=2, enable_expert_parallel=True)
except ParameterError as error:
    assert str(error) == "enable_expert_parallel: the model has no experts; leave it out", error
else:
    raise AssertionError("it was ignored")
"""


_BUDGET = """
import sys
from jaxinfer import LLM
from jaxinfer.runner.pipeline import fitting

fitting.machine_memory, block = lambda: 128 << 20, 16 * 6 * 2 * 2 * 32 * 4
small = dict(max_num_seqs=2, max_num_batched_tokens=64, max_model_len=128, lazy_compile=True, compile_cache_dir="off")

for mesh, copies in (("tp2", 1), ("single", 1), (sys.argv[1], 2)):
    engine = LLM("demo", **small, mesh=mesh, dtype="float32").engine
    on_all = sum(shard.data.nbytes for array in engine.runner.kv for shard in array.addressable_shards)
    assert on_all == engine.info.num_blocks * block * copies, mesh
    assert (16 << 20) * 0.95 < on_all <= 16 << 20, (mesh, on_all)
"""


_TRAINED = """
import json, sys
from pathlib import Path
from jaxinfer import LLM, SamplingParams

model = Path(sys.argv[1])
cases = json.loads((model / "greedy_reference.json").read_text())["cases"]
SMALL = dict(max_num_seqs=2, max_num_batched_tokens=32, max_model_len=256, dtype="float32", compile_cache_dir="off")
llm = LLM(str(model), mesh="tp4", decode_steps=4, **SMALL)
greedy = SamplingParams(temperature=0, max_tokens=64)
results = llm.generate([case["prompt"] for case in cases], greedy, use_tqdm=False)
assert [result.outputs[0].token_ids for result in results] == [case["new_token_ids"] for case in cases]
assert llm.engine.runner.status().compiles_after_ready == 0
"""


def run(program: str, *arguments: str) -> None:
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag]
    command = [sys.executable, "-c", program, *arguments]
    environment = {**os.environ, "XLA_FLAGS": " ".join(flags)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.long
def test_a_mesh_by_its_name_gives_the_tokens_of_one_device():
    run(_DEMO)


@pytest.mark.long
def test_all_devices_share_one_budget_of_kv_blocks(tmp_path: Path):
    """Blocks that are split, and those that lie on each device."""
    file = tmp_path / "own.yaml"
    file.write_text("axes: {tensor: 2}\nrules: {kv_heads: null}\n")
    run(_BUDGET, str(file))


@pytest.mark.long
@pytest.mark.parametrize("family", ["gpt_oss", "mixtral"])
def test_experts_by_channels_and_whole_give_the_tokens_of_one_device(family: str, tmp_path: Path):
    file = tmp_path / "own.yaml"
    file.write_text("axes: {expert: 2, tensor: 2}\nrules: {expert: [expert, tensor], expert_mlp: null}\n")
    run(_ENGINES + _MORE * (family == "gpt_oss"), str(GOLDENS / family), str(file))


@pytest.mark.long
def test_other_rules_give_the_tokens_of_one_device(tmp_path: Path):
    """Every matrix split along its inputs, or along query heads; attention whole on each device."""
    program = _ENGINES.partition("four, tokens")[0] + _OTHER_RULES
    rules = "rules: {embed: tensor, kv_heads: null, mlp: null, vocab: null, expert_mlp: null}"
    files = tmp_path / "embed.yaml", tmp_path / "q_per_kv.yaml"
    for file, text in zip(files, (rules, "rules: {q_per_kv: tensor, kv_heads: null}"), strict=True):
        file.write_text(f"axes: {{tensor: 2}}\n{text}\n")
    run(program, str(GOLDENS / "llama3"), *map(str, files))


@pytest.mark.long
def test_a_trained_model_over_four_devices_gives_the_reference_and_compiles_nothing_late():
    run(_TRAINED, str(material("models", "stories260K")))
