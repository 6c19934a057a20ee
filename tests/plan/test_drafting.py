"""Plans with drafts: memory against what an engine allots, times against an engine over a simulated device."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jaxinfer.config import EngineConfig, ModelConfig, SchedulerConfig
from jaxinfer.errors import ParameterError
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.eagle3 import Eagle3Config, parse_eagle3
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.eagle3 import random_eagle3
from jaxinfer.models.loaded import abstract_model
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.plan.chip import read_chip
from jaxinfer.plan.drafting import Assumed
from jaxinfer.plan.estimate import MeshPlan, StepTime, Term, plan_mesh
from jaxinfer.plan.service import Workload, service
from jaxinfer.plan.temporaries import estimated_temporaries
from jaxinfer.plan.work import ShardRows
from jaxinfer.runner.fit import memory
from jaxinfer.runner.step.draft_model import with_draft
from jaxinfer.speculation import Speculation
from tests.models import eagle3_folder
from tests.plan.simulated_stages import of_one, serve
from tests.runner.mesh_matrix import MODELS

TARGET = MODELS["windowed"] | {"max_position_embeddings": 4096}
SMALL = MODELS["two KV heads"] | {"hidden_size": 64, "num_hidden_layers": 1, "max_position_embeddings": 4096}
HEAD = eagle3_folder.RAW | {"vocab_size": TARGET["vocab_size"], "hidden_size": TARGET["hidden_size"],
                            "draft_vocab_size": 48,
                            "max_position_embeddings": 4096}  # fmt: skip
H200 = read_chip("h200")
BY = {"ngram": '{"method": "ngram"', "draft_model": '{"model": "it"', "eagle3": '{"method": "eagle3", "model": "it"'}


def drafts(method: str) -> DecoderConfig | Eagle3Config | None:
    if method == "eagle3":
        return parse_eagle3(HEAD, parse_config(TARGET))
    return parse_config(SMALL) if method == "draft_model" else None


def plan(
    method: str | None = "draft_model",
    acceptance: float = 0.8,
    *,
    most: int = 4,
    mesh: MeshConfig = ONE_DEVICE,
    length: int = 96,
    **sizes: Any,
) -> MeshPlan:
    asked = None if method is None else f'{BY[method]}, "num_speculative_tokens": {most}}}'
    scheduler = SchedulerConfig(**{"max_num_seqs": 64, **sizes}, speculative_config=asked)
    config = EngineConfig(load=ModelConfig(max_model_len=length), scheduler=scheduler)
    assumed = None if method is None else Assumed(drafts(method), acceptance)
    return plan_mesh(config, parse_config(TARGET), mesh, "it", H200, assumed=assumed)


@pytest.mark.parametrize("method", ["ngram", "draft_model", "eagle3"])
def test_pages_are_those_that_an_engine_allots(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = plan(method)
    model, config = abstract_model(found.model.config, dtype=found.model.dtype), drafts(method)
    if isinstance(config, Eagle3Config):
        model = with_draft(model, random_eagle3(config, dtype=found.model.dtype))
    elif config is not None:
        model = with_draft(model, abstract_model(config, dtype=found.model.dtype))
    monkeypatch.setattr(memory, "step_temporaries", lambda *_: found.memory.temporaries)

    def allotted(left: int) -> list[int]:
        limit = found.memory.usable - found.memory.left + left
        return memory.device_blocks(model, found.shapes, limit=limit, cache=None)

    assert list(found.memory.blocks) == allotted(found.memory.left)
    # To the byte: one block of each group beside the first, and not one byte less.
    costs = memory.block_costs(model, found.shapes)
    assert allotted(2 * sum(costs)) == [2] * len(costs)
    with pytest.raises(ParameterError, match="leave no room"):
        allotted(2 * sum(costs) - 1)
    assert found.memory.kv_token * found.shapes.block_size == sum(costs)
    assert found.lacks(1) == 0


@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_what_drafts_is_split_with_the_model(method: str) -> None:
    one, two = plan(method), plan(method, mesh=MeshConfig({"tensor": 2}))
    assert one.drafter is not None
    assert two.drafter is not None
    most = 0.8 if method == "eagle3" else 0.6  # what makes features of hidden states lies on each device
    assert one.drafter.weight_bytes / 2 <= two.drafter.weight_bytes < most * one.drafter.weight_bytes
    plain = plan(None)
    assert one.memory.weights == plain.memory.weights + one.drafter.weight_bytes


def test_a_step_with_drafts_is_one_over_all_of_them_and_a_pass_for_each() -> None:
    """The draft model's times are those of a plan of its own."""
    found, rows = plan(most=3), ShardRows(8, 1, 70)
    config = EngineConfig(load=ModelConfig(max_model_len=96), scheduler=SchedulerConfig(max_num_seqs=64))
    alone = plan_mesh(config, parse_config(SMALL), ONE_DEVICE, "it", H200)
    checked = found.time(ShardRows(8, 4, 70, 4)).seconds
    made = alone.time(ShardRows(8, 2, 70)).seconds + 2 * alone.time(rows).seconds
    told = found.draft_time(rows)
    assert told.seconds == pytest.approx(checked + made)
    assert [term.seconds for term in told.terms if term.name == "drafts"] == [pytest.approx(made)]
    assert plan("ngram").draft_time(rows).seconds == found.time(ShardRows(8, 5, 70, 5)).seconds
    # Prompts are read by both, and what is read for drafts alone is not scored.
    prompts = ShardRows(1, 50, 0)
    read = alone.time(prompts._replace(scored=0)).seconds
    assert found.mixed_time(prompts).seconds == pytest.approx(found.time(prompts).seconds + read)


def times(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], float]) -> None:
    """Steps of a plan take what is said of their tokens."""

    def time(self: MeshPlan, *rows: ShardRows) -> StepTime:
        return StepTime((Term("all", seconds(sum(each.count * each.tokens for each in rows)), "memory", 0, 0),))

    monkeypatch.setattr(MeshPlan, "time", time)


@pytest.mark.parametrize(
    ("seconds", "acceptance", "pays"),
    [
        (lambda tokens: 1.0, 0.5, True),  # drafts take nothing
        (lambda tokens: float(tokens), 0.9, False),  # each takes as long as a token
        (lambda tokens: 1.0, 0.0, False),  # none is kept
    ],
)
def test_drafts_are_planned_if_they_pay(
    seconds: Callable[[int], float], acceptance: float, pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, rows = plan("draft_model", acceptance), ShardRows(8, 1, 70)
    assert found.drafter is not None
    found = replace(found, drafter=replace(found.drafter, model=None))
    times(monkeypatch, seconds)
    assert found.should_draft(rows) == pays
    tokens = sum(acceptance**place for place in range(5 if pays else 1))
    assert found.token_seconds(rows) == pytest.approx(seconds(8 * 5 if pays else 8) / tokens)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("acceptance", "token", "rows", "prompt"),
    [(0.8, 0.01, 8, 64), (0.7, 0.01, 16, 64), (0.7, 0.5, 64, 64), (0.4, 0.1, 32, 16)],
)
def test_a_service_is_that_of_an_engine(
    acceptance: float, token: float, rows: int, prompt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That learns for itself whether drafts pay, before a quarter of its time is over. Its simulated device has nothing
    to draft in one of five places."""
    work = Workload(prompt, 256)
    found = plan("ngram", acceptance, length=1024, max_num_seqs=rows, max_num_batched_tokens=512)

    def seconds(tokens: int) -> float:
        return 1e-3 * max(8.0, tokens * token)

    times(monkeypatch, seconds)
    told = service(found, work, rows)
    served = serve(
        of_one(seconds), 1, 512, rows, *work[:2], requests=12 * rows, drafting=Speculation(4), hit_rate=acceptance / 0.8
    )
    assert told.tokens_per_second == pytest.approx(served.tokens_per_second, rel=0.05)
    assert told.itl == pytest.approx(served.itl, rel=0.05)


def test_a_lone_request_waits_for_no_prompts_of_others() -> None:
    found = plan("ngram", 0.8, length=4096)
    told, each = service(found, Workload(2000, 64), 1), found.token_seconds(ShardRows(1, 1, 2032))
    assert told.itl == pytest.approx(each)


def test_few_slots_with_many_drafts_need_more_temporaries() -> None:
    """16 rows of nine positions are sampled at once, instead of 80: as compilers tell."""
    shapes, config = plan(None, max_num_seqs=16).shapes, parse_config(TARGET | {"vocab_size": 150_000})
    drafting, plain = (
        estimated_temporaries(config, ONE_DEVICE, replace(shapes, drafting=by), "gpu", 2, (64,))
        for by in (Speculation(8), None)
    )
    assert drafting / plain == pytest.approx(144 / 80)


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"^speculative_config: drafts of a pipeline are not planned yet"):
        plan(mesh=MeshConfig({"stage": 2}))
    with pytest.raises(ParameterError, match="cannot be split over 64 devices"):
        plan("eagle3", mesh=MeshConfig({"tensor": 64}))
