"""Meshes that are looked for, and requests within limits, against trying everything."""

import pytest

from jaxinfer.config import EngineConfig, ModelConfig, SchedulerConfig
from jaxinfer.errors import ParameterError
from jaxinfer.model_config.registry import parse_config
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.plan.chip import read_chip
from jaxinfer.plan.estimate import MeshPlan, plan_mesh
from jaxinfer.plan.search import Limits, best_service, keeps_up, smallest, sweep
from jaxinfer.plan.service import Workload, service
from jaxinfer.plan.work import ShardRows
from tests.runner.mesh_matrix import MODELS

LARGE = MODELS["dense"] | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "head_dim": 128}
ASKED = EngineConfig(load=ModelConfig(max_model_len=96))
LONG = EngineConfig(load=ModelConfig(max_model_len=4096), scheduler=SchedulerConfig(max_num_batched_tokens=2048))
LONGER = LARGE | {"max_position_embeddings": 4096}
WORK = Workload(60, 20)


def planner(fields: dict, chip: str = "v5e", asked: EngineConfig = ASKED):
    def plan(mesh: MeshConfig, name: str) -> MeshPlan:
        return plan_mesh(asked, parse_config(fields), mesh, name, read_chip(chip))

    return plan


def test_the_fewest_devices_that_hold_the_model() -> None:
    found = smallest(planner(LARGE), 80)
    half = planner(LARGE)(MeshConfig({"tensor": found.mesh.size // 2}), "half")
    assert found.mesh.size > 1
    assert found.holds(80) > 0
    assert half.holds(80) == 0
    assert smallest(planner(MODELS["dense"]), 80).mesh.size == 1


def test_a_model_that_nothing_holds_is_told() -> None:
    with pytest.raises(ParameterError, match=r"fit: no mesh holds the model and 80 tokens; over 16: .*8 query heads"):
        smallest(planner(LARGE | {"hidden_size": 65536, "intermediate_size": 2**21}), 80)


def test_every_way_to_use_the_devices_once() -> None:
    dense = [plan.name for plan in sweep(8, planner(MODELS["dense"]), has_experts=False).plans]
    assert dense == ["data8-tp1", "data4-tp2", "data2-tp4", "tp8"]
    experts = sweep(4, planner(MODELS["experts"]), has_experts=True).plans
    assert [str(plan.mesh) for plan in experts if plan.name.startswith("ep")] == ["tensor=4"]
    odd = sweep(6, planner(MODELS["dense"]), has_experts=False)
    assert [plan.name for plan in odd.plans] == ["data6-tp1", "data3-tp2"]
    assert odd.left_out.keys() == {"data2-tp3", "tp6"}
    assert "8 query heads" in odd.left_out["tp6"]
    with pytest.raises(ParameterError, match="mesh"):  # of 7 no way but one group a device, which 3 heads allow
        sweep(7, lambda mesh, name: planner(MODELS["dense"])(MeshConfig({"tensor": 7}), name), has_experts=False)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_the_most_requests_within_a_limit(share: float) -> None:
    plan = planner(LARGE, "h200")(MeshConfig({"tensor": 8}), "it")
    slow, fast = service(plan, WORK, 200).itl, service(plan, WORK, 1).itl
    limits = Limits(itl=fast + share * (slow - fast))
    found = best_service(plan, WORK, 200, limits)
    allowed = [batch for batch in range(1, 201) if service(plan, WORK, batch).itl <= (limits.itl or 0)]
    assert found is not None
    assert found.batch == max(allowed) < 200
    assert best_service(plan, WORK, 200, Limits(itl=fast * 0.99)) is None
    assert best_service(plan, WORK, 200, Limits(ttft=found.ttft * 1.01)) == service(plan, WORK, 200)
    assert best_service(plan, WORK, 200, Limits(ttft=found.ttft * 0.99)) is None


@pytest.mark.few(1)
@pytest.mark.parametrize("work", [WORK, Workload(2000, 16), Workload(100, 1)])
@pytest.mark.parametrize("axes", [{"tensor": 8}, {"data": 4, "tensor": 2}, {"data": 2, "stage": 2, "tensor": 2}])
def test_as_few_requests_under_way_as_answer_all_that_come(axes: dict[str, int], work: Workload) -> None:
    plan = planner(LONGER, "h200", LONG)(MeshConfig(axes), "it")
    rates = [service(plan, work, batch).tokens_per_second / work.tokens_out for batch in range(1, 201)]
    for share in (0.1, 0.5, 0.9, 1.0):
        wanted = share * max(rates)
        asked = work._replace(rate=wanted)
        found = best_service(plan, asked, 200, Limits())
        assert found is not None
        assert found.batch == service(plan, work, 1 + [rate >= wanted for rate in rates].index(True)).batch
        assert keeps_up(found, asked)
        assert found.tokens_per_second == pytest.approx(wanted * work.tokens_out)
    more = work._replace(rate=2 * max(rates))
    most = best_service(plan, more, 200, Limits())
    assert most is not None
    assert most.tokens_per_second == pytest.approx(max(rates) * work.tokens_out)
    assert not keeps_up(most, more)


def test_no_token_takes_longer_than_a_step_and_requests_end_before_others_begin() -> None:
    """2,000 tokens in and 16 out: a step has a prompt of its own, so no more than 16 requests are under way."""
    plan = planner(LONGER, "h200", LONG)(MeshConfig({"tensor": 8}), "it")
    found = service(plan, Workload(2000, 16), 200)
    assert found.batch == 16
    mixed = plan.time(ShardRows(1, 2000, 0), ShardRows(15, 1, 2008)).seconds
    assert found.itl == pytest.approx(mixed)
    assert found.tokens_per_second == pytest.approx(16 / mixed)
    assert service(plan, Workload(2000, 1), 200).itl == 0
