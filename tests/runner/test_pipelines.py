"""Engines over the stages of a pipeline, on devices of a CPU, give the tokens of one device."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.build import DEMO_FOLDER
from jaxinfer.engine.device.runner import DeviceMemory
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.model_config.layer_kind import AttentionKind
from jaxinfer.model_config.mlp_kind import ExpertsKind
from jaxinfer.models.loaded import LoadedModel, load_stages, random_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.runner.fit.costs import step_costs
from jaxinfer.runner.fit.fitting import costs_of_stages
from jaxinfer.runner.fit.memory import handed_bytes
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.stages.newest_tokens import NewestTokens
from jaxinfer.runner.step.draft_model import with_draft
from jaxinfer.runner.step.stage import StagedModel, stages_of
from jaxinfer.sampling import SamplingParams
from jaxinfer.speculation import Method, Speculation
from tests.draws import first_seed
from tests.engine.outputs import Outputs
from tests.model_config.uniform import uniform_decoder
from tests.quantization.checkpoints import config_of
from tests.runner import pipeline_matrix
from tests.runner.devices import run_on_devices
from tests.runner.failing_programs import FailingPrograms
from tests.runner.tiny import drive, make_core, tiny_model, tiny_shapes, with_blocks
from tests.turns import one_of

MESH = {"windows in sixes": "pp3", "tied": "pp2-data2-tp2"}
"""One a model here, and one of its engines by the seed of random cases; all by `tests.runner.pipeline_matrix`."""


@pytest.mark.long
@pytest.mark.parametrize("model", MESH)
def test_pipelines_give_what_one_device_gives(model: str) -> None:
    assert model in pipeline_matrix.MODELS
    run_on_devices(pipeline_matrix.main, 8, model, MESH[model], only=first_seed())


@pytest.mark.long
def test_two_stages_of_four_devices_with_whole_experts() -> None:
    run_on_devices(pipeline_matrix.compare_few_blocks, 8)


def pipeline(windows: tuple[int | None, ...], ends: tuple[int, ...], **sizes: Any) -> JaxRunner:
    """Stages that end before these layers, all on one device. A draft model is the model itself."""
    whole, firsts = tiny_model(windows).config, (0, *ends)
    stages = [whole.stage(first, last) for first, last in zip(firsts, (*ends, len(windows)), strict=True)]
    model = StagedModel(tuple(random_model(one, dtype=jnp.dtype("float32"), mesh=make_mesh()) for one in stages))
    assert model.config == whole
    if (drafting := sizes.get("drafting")) is not None and drafting.method == "draft_model":
        model = StagedModel((with_draft(model.parts[0], tiny_model(windows)), *model.parts[1:]))
    runner = JaxRunner(model, tiny_shapes(model, **sizes, stages=len(stages)))
    runner.warm_up(when="lazy")
    return runner


WINDOWS: tuple[int | None, ...] = (None, 12, None)
FEW_ROWS = {"max_num_seqs": 4, "max_num_batched_tokens": 16}


@cache
def alone(method: Method | None = None) -> JaxRunner:
    """One device. A draft model is the model itself."""
    model = tiny_model(WINDOWS)
    model = with_draft(model, model) if method == "draft_model" else model
    drafting = None if method is None else Speculation(3, 1, 2, method)
    runner = JaxRunner(model, tiny_shapes(model, **FEW_ROWS, drafting=drafting))
    runner.warm_up(when="lazy")
    return runner


@cache
def three_stages(method: Method) -> JaxRunner:
    return pipeline(WINDOWS, (1, 2), **FEW_ROWS, drafting=Speculation(3, 1, 2, method))


@cache
def two_stages(drafting: Speculation | None) -> JaxRunner:
    return pipeline(WINDOWS, (1,), **FEW_ROWS, drafting=drafting)


def test_stages_know_their_groups() -> None:
    whole = tiny_model((None, 12, None, 12)).config
    parts = [whole.stage(0, 1), whole.stage(1, 2), whole.stage(2, 4)]
    assert [stage.groups for stage in stages_of(whole, parts)] == [(0,), (1,), (0, 1)]
    parts = [whole.stage(0, 1), whole.stage(1, 4)]  # the second begins with a window
    assert [stage.groups for stage in stages_of(whole, parts)] == [(0,), (1, 0)]


@pytest.mark.long
def test_a_group_that_one_stage_alone_has_and_one_in_another_order() -> None:
    prompts = [np.random.default_rng(seed).integers(1, 300, 20 + 9 * seed).tolist() for seed in range(4)]
    asked = {"max_tokens": 20, "temperature": 0.0, "ignore_eos": True}
    requests = [GenerateRequest(str(i), prompt, SamplingParams(**asked)) for i, prompt in enumerate(prompts)]
    found = drive(make_core(two_stages(None), ahead=2), requests)
    right = drive(make_core(alone()), requests)
    assert {key: output.tokens for key, output in found.items()} == {key: out.tokens for key, out in right.items()}


@pytest.mark.long
@pytest.mark.parametrize("method", one_of(2, ["ngram", "draft_model"]))
def test_drafts_of_the_first_stage_are_those_of_one_device(method: Method) -> None:
    """It knows all that was drawn before, with other rows' steps in between: as many drafts are kept."""
    own = [np.random.default_rng(seed).integers(1, 300, 4 + seed).tolist() for seed in range(4)]
    prompts = [prompt * (5 if seed % 2 else 1) for seed, prompt in enumerate(own)]  # two repeat themselves
    for temperature in (0.0, 0.8):
        asked = SamplingParams(max_tokens=40, temperature=temperature, seed=1, ignore_eos=True)
        requests = [GenerateRequest(str(i), prompt, asked) for i, prompt in enumerate(prompts)]
        found, stats = [], []
        for runner in (alone(method), three_stages(method)):
            core = make_core(runner, ahead=runner.shapes.stages, clock=lambda: 0)  # so that every step drafts
            found.append(tokens_of(drive(core, requests)))
            if method == "ngram":  # what comes is foretold
                told = [replace(one, prediction=found[-1][one.request_id, 0]) for one in requests]
                drive(core, [replace(one, request_id=f"again {one.request_id}") for one in told])
            stats.append(core.stats())
        assert found[0] == found[1]
        right, kept = (each.drafts.accepted_tokens / each.drafts.draft_tokens for each in stats)
        assert abs(kept - right) < 0.05
        assert kept > (0.95 if method == "draft_model" else 0.5)


@pytest.mark.long
@pytest.mark.parametrize("ahead", [0, 3])
def test_rows_that_draft_in_slots_that_others_had(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefix hits, forks, and prompts in chunks: of many rows no step has drawn a token when they first draft."""
    rng, requests = np.random.default_rng(0), []
    shared = rng.integers(1, 300, 17).tolist()
    for number in range(24):
        prompt = [*shared[: 17 - number % 2], *rng.integers(1, 300, number % 4 + (number % 5 == 0) * 20).tolist()]
        asked = SamplingParams(max_tokens=2 + number % 9, seed=number, n=1 + 2 * (number % 3 == 0), ignore_eos=True)
        requests.append(GenerateRequest(str(number), prompt, asked))
    right = tokens_of(drive(make_core(alone()), requests))
    runner = with_blocks(monkeypatch, three_stages("draft_model"), 50)
    core = make_core(runner, ahead=ahead, clock=lambda: 0)
    assert tokens_of(drive(core, requests)) == right
    assert core.stats().drafts.accepted_tokens > 50


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("stage", "kind", "drafting"),
    [
        (0, "decode", None),
        (1, "mixed", None),
        (1, "sample", None),
        (1, "decode", None),
        (0, "draft", Speculation(3)),
        (0, "verify", Speculation(3)),
        (1, "verify", Speculation(3)),
        (1, "accept", Speculation(3)),
    ],
)
def test_a_program_that_fails_with_steps_in_flight(
    stage: int, kind: str, drafting: Speculation | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrays that it was given are gone; those of other stages go with them."""
    runner = two_stages(drafting)
    prompts = [np.random.default_rng(seed).integers(1, 300, 9 + 9 * seed).tolist() for seed in range(3)]
    asked = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
    requests = [GenerateRequest(str(i), prompt, SamplingParams(**asked)) for i, prompt in enumerate(prompts)]
    right = tokens_of(drive(make_core(runner, ahead=2, clock=lambda: 0), requests))
    failed = runner.stages[stage]
    failing = FailingPrograms(failed.programs, 3, kind)
    monkeypatch.setattr(failed, "programs", failing)
    before = [array for each in runner.stages for array in each.kv]
    core = make_core(runner, ahead=2, clock=lambda: 0)
    assert tokens_of(drive(core, requests)) == right
    assert (failing.left < 0, core.stats().core.step_faults) == (True, 1)
    assert all(array.is_deleted() for array in before)


def test_reset_and_close_leave_nothing() -> None:
    runner = two_stages(None)
    drive(make_core(runner, ahead=2), [GenerateRequest("a", [1, 2, 3], SamplingParams(max_tokens=2))])
    assert any(np.asarray(kv).any() for each in runner.stages for kv in each.kv)
    runner.reset()
    assert all(not np.asarray(kv).any() for each in runner.stages for kv in each.kv)
    assert runner.status().memory == (DeviceMemory(),) * 2
    runner.close()
    assert not any(each.kv for each in runner.stages)
    runner.reset()


def test_costs_are_those_of_the_whole() -> None:
    for whole in (tiny_model((None, 12, None)), _experts()):
        stages = [whole.config.stage(0, 1), whole.config.stage(1, whole.config.num_layers)]
        parts = tuple(random_model(stage, dtype=whole.dtype, mesh=whole.mesh) for stage in stages)
        found, right = costs_of_stages(StagedModel(parts)), step_costs(whole)
        assert found._replace(experts=()) == right._replace(experts=())
        assert found.expert_bytes(5, 2) == right.expert_bytes(5, 2)


@pytest.mark.long
def test_the_load_of_experts_is_that_of_the_whole() -> None:
    whole = _experts()
    stages = [whole.config.stage(0, 1), whole.config.stage(1, 3)]
    parts = tuple(random_model(stage, dtype=whole.dtype, mesh=whole.mesh) for stage in stages)
    sizes = {"max_num_seqs": 2, "max_num_batched_tokens": 16}
    alone = JaxRunner(whole, tiny_shapes(whole, **sizes))
    both = JaxRunner(StagedModel(parts), tiny_shapes(whole, **sizes, stages=2))
    asked = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
    loads = []
    for runner in (alone, both):
        runner.warm_up(when="lazy")
        drive(make_core(runner, ahead=0), [GenerateRequest("a", list(range(1, 21)), asked)])
        loads.append(runner.status().expert_load)
    assert loads[0].experts.shape == (3, 4)
    assert loads[0].experts.sum() == 3 * 2 * 25  # layers, experts that a token chooses, tokens
    np.testing.assert_array_equal(loads[1].experts, loads[0].experts)


def _experts() -> LoadedModel:
    attention = AttentionKind(num_heads=4, num_kv_heads=2, head_dim=8)
    config = uniform_decoder(
        attention,
        ExpertsKind(4, 2, 32),
        (None, None, None),
        vocab_size=300,
        hidden_size=32,
        max_position_embeddings=256,
    )
    return random_model(config, dtype=jnp.dtype("float32"))


def tokens_of(outputs: Outputs) -> dict[tuple[str, int], list[int]]:
    return {key: output.tokens for key, output in outputs.items()}


@pytest.mark.parametrize("embeds", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_hidden_states_in_flight_take_memory(embeds: bool, ends: bool) -> None:
    """Of each of a pipeline's steps in flight, what a stage is handed and what it hands on."""
    whole = tiny_model((None,) * 4)
    shapes = tiny_shapes(whole, stages=3, max_num_batched_tokens=64)
    stage = whole.config.stage(0 if embeds else 1, 4 if ends else 3)
    assert handed_bytes(stage, shapes, 2) == 4 * ((not embeds) + (not ends)) * 64 * 32 * 2
    drafting = replace(shapes, drafting=Speculation(15))  # 16 tokens of each of 8 rows
    arrays = (not embeds) + (not ends) + (ends and not embeds)
    assert handed_bytes(stage, drafting, 2) == 4 * arrays * 128 * 32 * 2


def test_newest_tokens_are_those_after_a_step() -> None:
    nothing, *drawn = (jax.device_put(np.full((1, 3), number, np.int32)) for number in range(10))
    newest = NewestTokens(nothing, stages=2)
    assert newest.after(-1) is nothing
    for step in (0, 1, 3, 6, 7):
        newest.add(step, drawn[step])
    assert [newest.after(step) is drawn[step] for step in (1, 3, 6, 7)] == [True] * 4
    assert newest.after(0) is drawn[1]  # which is older than any in flight: one that came later has the same
    newest.add(0, drawn[8])
    assert newest.after(0) is drawn[8]
    newest.clear()
    assert newest.after(-1) is nothing


@pytest.mark.parametrize("spans", [((0, 2), (2, 6)), ((0, 1), (1, 5), (5, 6))])
def test_a_stages_weights_are_those_of_the_whole(spans: tuple[tuple[int, int], ...]) -> None:
    """Of the demo, whose head is its embedding."""
    config, dtype, told = config_of(DEMO_FOLDER), jnp.dtype("float32"), []
    (whole,) = load_stages(DEMO_FOLDER, config, [(0, 6)], dtype=dtype, meshes=[make_mesh()])
    parts = load_stages(
        DEMO_FOLDER, config, spans, dtype=dtype, meshes=[make_mesh()] * len(spans), progress=lambda *x: told.append(x)
    )
    values = {one.path: np.asarray(leaf) for one, leaf in zip(whole.plan.weights, whole.weights, strict=True)}
    for part, (first, last) in zip(parts, spans, strict=True):
        assert part.config.num_layers == last - first
        for one, leaf in zip(part.plan.numbered.weights, part.weights, strict=True):
            right = values[one.path] if one.path[0] != "vectors" else values[one.path][first:last]
            np.testing.assert_array_equal(leaf, right)
        assert bool(part.head) == (last == 6)
    np.testing.assert_array_equal(parts[-1].head[0], whole.head[0])
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]
