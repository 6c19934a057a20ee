"""Pipelines: times against an engine over simulated stages, memory against what an engine allots."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jaxinfer.config import EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig
from jaxinfer.errors import ParameterError
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import LoadedModel, abstract_model
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.plan.chip import read_chip
from jaxinfer.plan.estimate import MeshPlan, plan_mesh
from jaxinfer.plan.pipeline import StagedStep, flow_seconds, steady_round
from jaxinfer.plan.service import Workload, decode_round, service
from jaxinfer.plan.work import ShardRows, device_model, step_of
from jaxinfer.runner.fit import fitting, memory
from jaxinfer.runner.step.stage import StagedModel
from tests.plan.simulated_stages import serve
from tests.runner.mesh_matrix import MODELS

EIGHT = MODELS["dense"] | {"num_hidden_layers": 8, "max_position_embeddings": 10_000}
H200 = read_chip("h200")


def plan(fields: dict, axes: dict[str, int], chip: str = "h200", layers: str | None = None, **sizes: Any) -> MeshPlan:
    """sizes: of steps."""
    asked = EngineConfig(
        load=ModelConfig(max_model_len=sizes.pop("length", 96)),
        scheduler=SchedulerConfig(**{"max_num_seqs": 64, **sizes}),
        parallel=ParallelConfig(pipeline_layers=layers),
    )
    return plan_mesh(asked, parse_config(fields), MeshConfig(axes), "it", read_chip(chip))


def of_tokens(fixed: list[float], token: float, handed: float | list[float]) -> Callable[[int], StagedStep]:
    """Stages that take so many ms, and at least some for each token."""
    crossing = handed if isinstance(handed, list) else [handed] * len(fixed)

    def seconds(tokens: int) -> StagedStep:
        stages = tuple(1e-3 * max(least, tokens * token) for least in fixed)
        return StagedStep(stages, tuple(1e-3 * each for each in crossing))

    return seconds


def simulated(
    monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], StagedStep], budget: int, rows: int, work: Workload
) -> MeshPlan:
    """A plan whose steps take what those of the simulated stages do."""
    stages, length = len(seconds(1).stages), work.tokens_in + work.tokens_out
    found = plan(EIGHT, {"stage": stages}, length=length, max_num_seqs=rows, max_num_batched_tokens=budget)
    of_rows = lambda self, *rows: seconds(sum(each.count * each.tokens for each in rows))  # noqa: E731
    monkeypatch.setattr(MeshPlan, "staged_step", of_rows)
    return found


EQUAL, UNEVEN = [8.0] * 4, [8.0, 6.0, 8.0, 11.0]


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("fixed", "handed", "rows"),
    [
        (EQUAL, 0.0, 32),
        (EQUAL, 0.0, 30),  # a row less in some steps than in others
        (EQUAL, 1.0, 32),  # hand-overs make every round longer
        (UNEVEN, 0.0, 32),  # the slowest stage decides
        (UNEVEN, 3.0, 32),  # what waits for it hides hand-overs
        (EQUAL, 0.5, 3),  # fewer rows than stages: there is not enough to compute
        (UNEVEN, 0.5, 1),
        (EQUAL, [0.0, 15.0, 0.0, 0.0], 32),  # a link that is slower than stages
    ],
)
def test_steady_decode_is_that_of_an_engine(
    fixed: list[float], handed: float | list[float], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, work = of_tokens(fixed, 0.01, handed), Workload(8, 400)
    found = simulated(monkeypatch, seconds, 512, rows, work)
    served = serve(seconds, len(fixed), 512, rows, *work[:2], requests=rows, even=True)
    assert service(found, work, rows).tokens_per_second == pytest.approx(served.tokens_per_second, rel=0.02)
    assert service(found, work, rows).itl == pytest.approx(served.itl, rel=0.02)
    assert decode_round(found, rows, 8).bubble == pytest.approx(served.waits, abs=0.01)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("fixed", "token", "rows", "budget", "work", "within"),
    [
        (EQUAL, 0.01, 64, 2048, Workload(512, 128), 0.02),  # prompts come beside rows for nothing
        (UNEVEN, 0.01, 64, 2048, Workload(300, 100), 0.02),
        ([8.0, 9.0], 0.1, 128, 2048, Workload(512, 128), 0.05),  # they make steps longer
        (EQUAL, 0.05, 64, 512, Workload(1024, 16), 0.05),  # they fill steps
        (EQUAL, 0.05, 64, 512, Workload(1024, 1), 0.05),
        (EQUAL, 0.05, 64, 512, Workload(20, 1), 0.05),
        # Here chunks are not as equal as they are reckoned to be.
        (EQUAL, 0.05, 64, 2048, Workload(1024, 64), 0.10),
    ],
)
def test_prompts_beside_rows_that_decode(
    fixed: list[float],
    token: float,
    rows: int,
    budget: int,
    work: Workload,
    within: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = of_tokens(fixed, token, 0.5)
    found = service(simulated(monkeypatch, seconds, budget, rows, work), work, rows)
    served = serve(seconds, len(fixed), budget, rows, *work[:2], requests=8 * rows)
    assert found.tokens_per_second == pytest.approx(served.tokens_per_second, rel=within)
    assert found.itl == pytest.approx(served.itl, rel=within)


@pytest.mark.parametrize(("stages", "tokens"), [(2, 1000), (4, 8000), (4, 50)])
def test_the_first_token_of_a_lone_prompt_is_that_of_an_engine(
    stages: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, work = of_tokens(EQUAL[:stages], 0.05, 0.5), Workload(tokens, 2)
    found = service(simulated(monkeypatch, seconds, 512, 1, work), work, 1)
    served = serve(seconds, stages, 512, 1, *work[:2], requests=1, even=True)
    assert found.ttft == pytest.approx(served.ttft)
    assert found.tokens_per_second == pytest.approx(2 / (served.ttft + served.itl), rel=0.02)


def test_a_lone_request_of_one_token_takes_until_its_first(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, work = of_tokens(EQUAL, 0.05, 0.5), Workload(100, 1)
    found = service(simulated(monkeypatch, seconds, 512, 8, work), work, 1)
    assert found == (1, found.ttft, 0.0, pytest.approx(1 / found.ttft))


def test_chunks_follow_each_other_through_stages() -> None:
    """So many equal ones take as many ticks, and one less than there are stages."""
    assert flow_seconds([StagedStep((2.0,) * 4, (0.0,) * 4)] * 10) == (10 + 4 - 1) * 2.0
    assert flow_seconds([StagedStep((1.0, 3.0), (0.5, 9.0))] * 2) == 1 + 0.5 + 2 * 3
    assert flow_seconds([StagedStep((1.0, 1.0), (5.0, 9.0))] * 3) == 1 + 3 * 5 + 1
    assert flow_seconds([]) == 0
    alone = steady_round([StagedStep((1.0, 3.0), (0.5, 0.5))])
    assert (alone.seconds, alone.bubble) == (5.0, pytest.approx(1 - 4 / 2 / 5))


def test_a_stage_has_its_layers_and_the_ends_theirs() -> None:
    """Of an untied model: what the stages hold and do together is what one device does."""
    whole = plan(EIGHT | {"tie_word_embeddings": False}, {})
    staged = plan(EIGHT | {"tie_word_embeddings": False}, {"stage": 3}, layers="0-2,3-6,7")
    assert [one.layers for one in staged.stages] == ["0-2", "3-6", "7-7"]
    first, middle, last = (one.model for one in staged.stages)
    assert sum(one.weight_bytes for one in (first, middle, last)) == whole.model.weight_bytes
    assert (first.tables, middle.tables, last.tables) == (whole.model.tables, 0, 0)
    assert (first.head, middle.head, last.head) == ((0, 0), (0, 0), whole.model.head)
    each = [time.seconds for time in staged.stage_times(ShardRows(8, 1, 50))]
    assert sum(each) == pytest.approx(whole.time(ShardRows(8, 1, 50)).seconds)
    parts = [{part.name for part in step_of(one.model, [ShardRows(8, 1, 50)]).parts} for one in staged.stages]
    assert ["head" in names for names in parts] == ["sampling" in names for names in parts] == [False, False, True]
    assert staged.time(ShardRows(8, 1, 50)).seconds == max(each)
    # Of three steps of a round one has two of four rows.
    assert staged.decode(4, 50) == staged.time(ShardRows(2, 1, 50))


def test_slots_of_stages_before_the_last_have_no_counts() -> None:
    staged = plan(EIGHT, {"stage": 2})
    first, last = staged.stages
    counts = staged.shapes.num_slots * parse_config(EIGHT).vocab_size * 2
    assert last.memory.slots - first.memory.slots == counts


@pytest.mark.parametrize("name", ["two KV heads", "windowed", "experts", "dense"])
def test_pages_are_those_that_an_engine_allots(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = plan(MODELS[name] | {"num_hidden_layers": 3}, {"stage": 2}, layers="0,1-2")
    taken = {one.model.config.span: one.memory.temporaries for one in found.stages}
    parts = tuple(abstract_model(one.model.config, dtype=one.model.dtype) for one in found.stages)
    usable = found.memory.usable

    def temporaries(model: LoadedModel, *_: object) -> int:
        return taken[model.config.span]

    monkeypatch.setattr(memory, "step_temporaries", temporaries)
    monkeypatch.setattr(fitting, "usable_memory", lambda *_: usable)
    allotted = fitting.fitting_blocks(StagedModel(parts), found.shapes, 0.9, None, {})
    assert list(found.memory.blocks) == allotted
    # The stage with two of the layers has room for fewer tokens.
    second = found.stages[1].memory
    assert found.memory._replace(blocks=second.blocks) == second


def test_what_a_request_lacks_is_that_of_the_fullest_stage() -> None:
    large = EIGHT | {"hidden_size": 32768, "intermediate_size": 262144, "head_dim": 128}
    found = plan(large, {"stage": 2}, layers="0-6,7")
    first, last = found.stages
    assert (first.memory.left < 0, last.memory.left > 0, found.holds(1)) == (True, True, 0)
    scratch_and_own = 2 * 7 * 2 * 8 * 128 * 2 * found.shapes.block_size
    assert found.lacks(1) == scratch_and_own - first.memory.left
    assert service(found, Workload(10, 10), 4).batch == 0


def test_only_the_first_stage_exchanges_rows_of_the_embedding() -> None:
    found = plan(EIGHT, {"stage": 2, "tensor": 2}, layers="0-3,4-7")
    exchanges = [step_of(one.model, [ShardRows(8, 1, 50)]).exchanges for one in found.stages]
    assert [sum(one.count for one in each) for each in exchanges] == [1 + 2 * 4, 2 * 4]
    assert {term.name for term in found.stage_times(ShardRows(8, 1, 50))[1].terms} >= {"exchanges", "head"}


def test_what_crosses_is_the_hidden_states_of_a_shard() -> None:
    found = plan(EIGHT, {"data": 2, "stage": 2, "tensor": 2})
    width = parse_config(EIGHT).hidden_size
    onward, back = found.hand_overs(24)
    assert onward.bytes == 24 * width * 2
    assert back.bytes == found.shapes.num_slots * 4  # the newest token of each slot
    assert onward.seconds == pytest.approx(24 * width * 2 / 450e9 + 5e-6)


def test_layers_are_split_as_the_engine_splits_them_or_as_asked() -> None:
    # A head as large as many layers leaves the last stage few.
    fields = EIGHT | {"vocab_size": 4000, "tie_word_embeddings": False}
    first, last = plan(fields, {"stage": 2}).stages
    assert first.span[1] > 4
    slowest = max(time.seconds for time in plan(fields, {"stage": 2}).stage_times(ShardRows(8, 1, 1)))
    for cut in range(1, 8):
        other = plan(fields, {"stage": 2}, layers=f"0-{cut - 1},{cut}-7")
        assert max(time.seconds for time in other.stage_times(ShardRows(8, 1, 1))) >= slowest
    assert (first.span[0], last.span[1]) == (0, 8)
    with pytest.raises(ParameterError, match=r"pipeline_layers: 0-3,5-7: every layer"):
        plan(fields, {"stage": 2}, layers="0-3,5-7")
    with pytest.raises(ParameterError, match=r"pipeline_parallel_size: 9: the model has 8 layers"):
        plan(fields, {"stage": 9})


def test_one_stage_is_no_pipeline() -> None:
    asked, config = EngineConfig(load=ModelConfig(max_model_len=96)), parse_config(EIGHT)
    one, other = (plan_mesh(asked, config, mesh, "it", H200) for mesh in (ONE_DEVICE, MeshConfig({"stage": 1})))
    assert one == replace(other, mesh=one.mesh, model=replace(other.model, mesh=one.mesh))
    assert one.stages == ()
    assert one.model == device_model(config, one.model.dtype, "gpu", ONE_DEVICE)
