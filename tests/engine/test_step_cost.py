"""What steps compute and cost, against sums over single tokens."""

import numpy as np
import pytest

from jaxinfer.engine.stats.counters import STEP_TOKENS
from jaxinfer.engine.stats.step_cost import ExpertCosts, StepCosts, StepCostTotals
from jaxinfer.engine.step.plan import StepKind, StepPlan
from tests.engine.small import RecordingRunner, ask, run, small_core, small_shapes

COSTS = StepCosts(
    weight_bytes=10**9,
    token_flops=10**6,
    scored_flops=10**3,
    kv_bytes=(7, 11),
    pair_flops=(13, 17),
    experts=(ExpertCosts(count=8, chosen=3, bytes=10**7), ExpertCosts(count=40, chosen=1, bytes=10**6)),
)


def plans_of(window: int | None, decode_steps: int) -> tuple[StepCostTotals, list[StepPlan], list[int | None]]:
    runner = RecordingRunner(small_shapes(120, window, decode_steps=decode_steps))
    windows = [group.window for group in runner.shapes.groups]
    costs = COSTS._replace(kv_bytes=COSTS.kv_bytes[: len(windows)], pair_flops=COSTS.pair_flops[: len(windows)])
    core = small_core(runner)
    work = StepCostTotals(runner.shapes, costs)
    for i in range(9):
        core.add_request(ask(f"r{i}", 3 + 3 * i, 4 + i, n=1 + i % 2))
    run(core)
    plans = [plan for plan in runner.plans if plan.num_rows]
    for plan in plans:
        work.add(plan)
    work.count()
    return work, plans, windows


def computed(plan: StepPlan) -> list[int]:
    """Positions that each row computes: of several tokens that it samples all but the last."""
    return (plan.counts + np.maximum(plan.samples - 1, 0)).tolist()


@pytest.mark.parametrize("decode_steps", [1, 4])
@pytest.mark.parametrize("window", [None, 6])
def test_operations_and_bytes_are_those_of_single_tokens(window: int | None, decode_steps: int) -> None:
    work, plans, windows = plans_of(window, decode_steps)
    flops = read = 0
    for plan in plans:
        passes = max(plan.samples) if plan.kind is StepKind.MULTI_STEP else 1
        read += COSTS.weight_bytes * int(passes)
        for kind in COSTS.experts:
            read += kind.bytes * min(kind.chosen * sum(computed(plan)), kind.count * int(passes))
        for row, (start, count) in enumerate(zip(plan.starts.tolist(), computed(plan), strict=True)):
            flops += COSTS.token_flops * count
            flops += COSTS.scored_flops * (count if plan.kind is StepKind.MULTI_STEP else int(plan.scored[row]))
            for group, own in enumerate(windows):
                seen = [
                    set(range(0 if own is None else max(0, position - own + 1), position + 1))
                    for position in range(start, start + count)
                ]
                flops += COSTS.pair_flops[group] * sum(map(len, seen))
                keys = sum(map(len, seen)) if row < plan.num_decode else len(set().union(*seen))
                read += COSTS.kv_bytes[group] * (keys + count)
    assert (work.flops, work.bytes) == (flops, read)


@pytest.mark.parametrize("decode_steps", [1, 4])
def test_steps_and_tokens_by_kind(decode_steps: int) -> None:
    work, plans, _ = plans_of(None, decode_steps)
    sizes = [sum(computed(plan)) for plan in plans]
    assert work.prefill_tokens + work.decode_tokens == sum(sizes)
    assert work.prefill_tokens == sum(len(plan.tokens) for plan in plans)
    assert work.multi_step_steps == sum(plan.kind is StepKind.MULTI_STEP for plan in plans)
    assert (work.multi_step_steps > 0) == (decode_steps > 1)
    assert work.mixed_steps == sum(bool(len(plan.tokens)) for plan in plans)
    assert work.decode_steps == len(plans) - work.multi_step_steps - work.mixed_steps
    # Of an iteration vLLM counts the prompt tokens that it computed and the tokens that it generated.
    drawn = [int(plan.samples.sum()) for plan in plans]
    made = [len(plan.tokens) + tokens for plan, tokens in zip(plans, drawn, strict=True)]
    assert work.iteration_tokens == sum(made)
    for i, edge in enumerate(STEP_TOKENS):
        assert sum(work.step_tokens[: i + 1]) == sum(size <= edge for size in made)
    assert sum(work.step_tokens) == len(plans)


def test_padding_is_what_a_bucket_has_more() -> None:
    core = small_core(RecordingRunner(small_shapes()))
    core.add_request(ask("a", 5, 4, n=3))
    run(core)
    stats = core.stats()
    plans = [plan for plan in core.runner.plans if plan.num_rows]  # type: ignore[attr-defined]
    # Rows go up to powers of two, tokens of a mixed step to 16, which is the budget.
    by_hand = sum(
        (1 << (plan.num_rows - 1).bit_length()) - plan.num_rows
        if plan.kind is StepKind.DECODE
        else 16 - plan.num_tokens
        for plan in plans
    )
    assert stats.steps.padded_tokens == by_hand > 0


def test_without_costs_there_are_no_operations() -> None:
    core = small_core()
    core.add_request(ask("a", 5, 4))
    run(core)
    assert (core.stats().steps.flops, core.stats().steps.bytes) == (0, 0)
    assert core.stats().steps.decode_tokens > 0
