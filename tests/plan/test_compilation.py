"""Shapes against the compilers: what every program takes, what it exchanges, and how many pages that leaves."""

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jaxinfer.config import EngineConfig, ModelConfig, SchedulerConfig
from jaxinfer.engine.step.buckets import make_buckets
from jaxinfer.model_config.registry import parse_config
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.rules import DEFAULT_RULES
from jaxinfer.plan.chip import read_chip
from jaxinfer.plan.compilation import Compilation, compile_plan, obstacle, program_names
from jaxinfer.plan.compiling import Bounds, target_folder, target_of
from jaxinfer.plan.estimate import MeshPlan, plan_mesh
from jaxinfer.plan.expected import differences, expected
from jaxinfer.plan.stand_in import first_backend, stand_in
from jaxinfer.runner.fit.memory import device_blocks
from tests.runner.mesh_matrix import MODELS, SMALL
from tests.turns import one_of

needs_compilers = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("libtpu", "jax_cuda13_plugin"))),
    reason="the extras compile-tpu and compile-gpu are not installed",
)
MESHES = {
    "one": MeshConfig({}),
    "tp2": MeshConfig({"tensor": 2}),
    "ep4": MeshConfig({"tensor": 4}, DEFAULT_RULES.with_whole_experts()),
    "data2-tp2": MeshConfig({"data": 2, "tensor": 2}),
    "pp2": MeshConfig({"stage": 2}),
}
CASES = (
    ("v6e", "experts", "ep4", "none"),
    ("v6e", "experts", "tp2", "int8"),
    ("v6e", "windowed", "data2-tp2", "none"),
    ("v7x", "14 heads", "tp2", "none"),
    ("v5e", "one KV head", "tp2", "none"),
    ("h200", "experts", "one", "none"),
    ("h200", "windowed", "data2-tp2", "none"),
    ("h200", "two KV heads", "tp2", "int8"),
)
BATCH = 12


def _asked(decode_steps: int = 1) -> EngineConfig:
    return EngineConfig(
        load=ModelConfig(max_model_len=96),
        scheduler=SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=96, decode_steps=decode_steps),
    )


def planned(
    chip: str,
    model: str,
    mesh: str,
    quantization: str = "none",
    *,
    decode_steps: int = 4,
    temporaries: int | None = None,
) -> MeshPlan:
    decoder = parse_config(MODELS[model]).quantised(quantization)
    return plan_mesh(_asked(decode_steps), decoder, MESHES[mesh], mesh, read_chip(chip), temporaries=temporaries)


@pytest.fixture(scope="module", autouse=True)
def _kept_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that was compiled before counts."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    os.environ.pop("XDG_CACHE_HOME")
    if before is not None:
        os.environ["XDG_CACHE_HOME"] = before


def compiled(plan: MeshPlan, *how: str) -> tuple[MeshPlan, Compilation]:
    """how: what `planned` was asked for."""

    def again(temporaries: int) -> MeshPlan:
        memory = plan.memory._replace(temporaries=temporaries)
        return planned(*how, temporaries=temporaries) if how else replace(plan, memory=memory)

    found = compile_plan(plan, BATCH, Bounds(seconds=300), again)
    assert not [answer.problem for answer in found[1].answers if answer.compiled is None]
    return found


@needs_compilers
@pytest.mark.parametrize(("chip", "model", "mesh", "quantization"), one_of(3, CASES))
def test_compilers_tell_what_was_reckoned(chip: str, model: str, mesh: str, quantization: str) -> None:
    """Arguments and aliases of all five programs to the byte; exchanges of hidden states in kind, bytes and number."""
    plan = planned(chip, model, mesh, quantization)
    told, found = compiled(plan)
    assert len(found.answers) == 5
    assert not found.differs
    assert told.memory.temporaries == found.temporaries
    assert told.estimated_temporaries == plan.memory.temporaries
    assert plan.mesh.shards("kv_heads") == 1 or expected(plan, ("decode", 8)).exchanges


@needs_compilers
@pytest.mark.parametrize("chip", ["v6e", "h200"])
def test_one_head_more_is_seen(chip: str) -> None:
    plan = planned(chip, "dense", "tp2")
    _, compilation = compiled(plan)
    config = parse_config({**SMALL, "num_attention_heads": 16, "num_key_value_heads": 8})
    other = plan_mesh(_asked(), config, plan.mesh, "tp2", plan.chip)
    answer = next(answer for answer in compilation.answers if answer.name[0] == "decode")
    assert answer.compiled is not None
    assert any(
        "arguments" in text for text in differences(replace(plan, model=other.model), answer.name, answer.compiled)
    )


def _hidden(plan: MeshPlan, found: Compilation) -> Counter[tuple[str, int]]:
    """Exchanges of the mixed program that are as large as hidden states."""
    (answer,) = (answer for answer in found.answers if answer.name[0] == "mixed")
    assert answer.compiled is not None
    size = answer.name[1] * plan.model.config.hidden_size * plan.model.dtype.itemsize
    return Counter({(one.kind, one.bytes): one.count for one in answer.compiled.collectives if one.bytes >= size})


@needs_compilers
def test_a_loop_counts_for_each_of_its_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four layers in a loop (on a TPU) exchange what four unrolled ones do (on a GPU)."""
    four = {**SMALL, "num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": 4}
    monkeypatch.setitem(MODELS, "four layers", four)
    tpu, gpu = (planned(chip, "four layers", "tp2") for chip in ("v6e", "h200"))
    looped, unrolled = (_hidden(plan, compiled(plan)[1]) for plan in (tpu, gpu))
    assert looped == unrolled
    assert sum(looped.values()) == 1 + 2 * 4


def print_pages(chip: str, model: str, mesh: str) -> None:
    """Print the blocks that an engine has over devices of the topology that standard input names."""
    plan, _ = compiled(planned(chip, model, mesh), chip, model, mesh)
    target = target_of(plan.chip)
    assert target is not None
    devices = target.on(sys.stdin.read()).devices()[: plan.mesh.size]
    platform, size = plan.chip.platform, plan.shapes.block_size
    loaded = stand_in(plan.model.config, plan.model.dtype, plan.mesh, devices, platform, size, first_backend(platform))
    blocks = device_blocks(loaded, plan.shapes, limit=plan.memory.usable, cache=None)
    assert tuple(blocks) == plan.memory.blocks, (blocks, plan.memory.blocks)
    print("PAGES", *blocks)


@needs_compilers
@pytest.mark.parametrize(
    ("chip", "model", "mesh", "topology"),
    one_of(
        4,
        [
            ("v6e", "windowed", "tp2", "v6e:2x2"),
            ("v5e", "dense", "tp2", "v5e:2x2"),
            ("v5p", "dense", "tp2", "v5p:2x2x1"),
            ("v7x", "experts", "ep4", "tpu7x:2x2x1"),
            ("h200", "experts", "tp2", "1x1x2"),
        ],
    ),
)
def test_pages_are_those_of_the_engine(chip: str, model: str, mesh: str, topology: str) -> None:
    """`device_blocks`, which an engine asks, over a model on such devices."""
    target = target_of(read_chip(chip))
    assert target is not None
    program = f"from {__name__} import print_pages; print_pages({chip!r}, {model!r}, {mesh!r})"
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=topology,
        env=os.environ | target.variables(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "PAGES" in done.stdout, done.stderr[-2000:]


def test_programs_of_a_batch() -> None:
    plan = planned("v6e", "dense", "data2-tp2")
    buckets = make_buckets(plan.shapes)
    names = dict(program_names(plan, BATCH))
    assert names == {
        "admit": 0,
        "decode": 8,  # six rows a shard
        "mixed": buckets.tokens[-1],
        "sample": buckets.scored[-1],
        "multi_step": buckets.rows[-1],
    }
    assert "multi_step" not in dict(program_names(planned("v6e", "dense", "tp2", decode_steps=1), BATCH))


def test_why_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert obstacle(planned("a100", "dense", "tp2")) == "no compiler's description of a100 is known"
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert (
        obstacle(planned("v6e", "dense", "tp2")) == "pip install 'jaxinfer[compile-tpu]' brings what compiles for v6e"
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    assert obstacle(planned("h200", "dense", "tp2")) is None
    staged = planned("h200", "dense", "pp2", decode_steps=1)
    assert obstacle(staged) == "programs of stages are not compiled yet"
    assert obstacle(replace(planned("h200", "dense", "tp2"), refused="it cannot be")) == "no engine serves it"


def test_targets_are_found() -> None:
    assert {file.stem for file in Path(target_folder()).glob("*.yaml")} == {"h200", "v5e", "v5p", "v6e", "v7x"}
