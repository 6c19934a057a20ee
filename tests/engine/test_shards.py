"""Several shards: slots and budgets of their own, and what each gets of a step."""

from typing import Any

import numpy as np

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.step.layouts import Layouts
from jaxinfer.engine.step.packing import Packer
from jaxinfer.engine.step.plan import StepKind, StepPlan
from jaxinfer.engine.step.split import split_plan
from tests.engine.ledger import check_blocks, live_sequences
from tests.engine.small import RecordingRunner, ask, small_core, small_shapes
from tests.engine.stepping import step_deltas

SHARDS = 3


def core_of(shards: int = 2, **changes: Any) -> EngineCore:
    return small_core(RecordingRunner(small_shapes(shards=shards, **changes)))


def shard_of(core: EngineCore, name: str) -> int:
    (sequence,) = live_sequences(core, name)
    return sequence.kv.shard


def test_a_full_shard_is_passed_over() -> None:
    """Eight fill both shards' four slots, whatever they have in common."""
    core = core_of(blocks=60)
    prompt = list(range(1, 10))
    for i in range(8):
        core.add_request(ask(str(i), [*prompt, i], 12))
    for _ in range(6):
        core.step()
    assert sorted(sequence.kv.shard for sequence in core.scheduler.state.running) == [0] * 4 + [1] * 4


def test_forks_stay_with_their_parents_blocks() -> None:
    core = core_of()
    core.add_request(ask("many", 9, 8, n=4))
    core.add_request(ask("one", 9, 8))
    for _ in range(4):
        core.step()
    assert {sequence.kv.shard for sequence in live_sequences(core, "many")} == {0}
    assert shard_of(core, "one") == 1


def test_more_forks_than_a_shard_has_slots_run_in_turns() -> None:
    """Each of eleven says all that it is to say, no more than four at a time, and nothing is held afterwards."""
    core, said, most = core_of(), dict[int, int](), 0
    core.add_request(ask("many", 9, 6, n=11))
    while core.has_work():
        for delta in step_deltas(core):
            said[delta.index] = said.get(delta.index, 0) + len(delta.token_ids)
        most = max(most, len(core.scheduler.state.running))
    assert said == dict.fromkeys(range(11), 6)
    assert most == 4
    check_blocks(core)


def test_each_shard_has_its_own_budget() -> None:
    """Two prompts of a whole budget are computed in one step, and three are not."""
    core = core_of()
    for name in "abc":
        core.add_request(ask(name, 16, 4))
    core.step()
    assert isinstance(core.runner, RecordingRunner)
    assert core.runner.plans[0].num_tokens == 32
    assert core.runner.plans[0].slots.tolist() == [0, 4]


def random_plan(rng: np.random.Generator) -> StepPlan:
    """Rows of any shards, some held by the device, with block changes."""
    shapes = small_shapes(shards=SHARDS)
    slots = rng.permutation(shapes.all_seqs)[: rng.integers(1, shapes.all_seqs + 1)].astype(np.int32)
    held = int(rng.integers(0, len(slots) + 1))
    counts = np.where(np.arange(len(slots)) < held, 1, rng.integers(1, 4, len(slots))).astype(np.int32)
    samples = np.where(np.arange(len(slots)) < held, 1, rng.integers(0, 2, len(slots))).astype(np.int32)
    # A prompt's log-probabilities: all its positions are scored, by the next tokens.
    scored = np.where(rng.random(len(slots)) < 0.3, counts, samples).astype(np.int32)
    targets = rng.integers(0, 61, scored[held:].sum()).astype(np.int32)
    targets[np.cumsum(scored[held:])[samples[held:] > 0] - 1] = -1
    updates = [(slot, int(rng.integers(0, 12)), int(rng.integers(1, 40))) for slot in slots[::2].tolist()]
    copies = [(shard, *rng.integers(1, 40, 2).tolist()) for shard in range(SHARDS) if rng.random() < 0.5]
    return StepPlan(
        kind=StepKind.MIXED if held < len(slots) else StepKind.DECODE,
        index=0,
        admissions=(),
        slots=slots,
        epochs=slots.astype(np.int64),
        starts=rng.integers(0, 30, len(slots)).astype(np.int32),
        counts=counts,
        scored=scored,
        samples=samples,
        unread=np.ones_like(slots),
        num_decode=held,
        tokens=rng.integers(0, 61, counts[held:].sum()).astype(np.int32),
        targets=targets,
        block_updates=(np.array(updates, np.int32).reshape(-1, 3),),
        copies=(np.array(copies, np.int32).reshape(-1, 3),),
        logprobs=False,
    )


Row = tuple[int, int, int, list[int], list[int]]
"""Slot, start, tokens that it may sample, tokens and targets; of rows that the device holds those are not in a plan."""


def rows_of(plan: StepPlan) -> list[Row]:
    rows, tokens, targets = [], plan.tokens.tolist(), plan.targets.tolist()
    for i in range(plan.num_rows):
        numbers = int(plan.slots[i]), int(plan.starts[i]), int(plan.samples[i])
        count, scored = (0, 0) if i < plan.num_decode else (int(plan.counts[i]), int(plan.scored[i]))
        rows.append((*numbers, tokens[:count], targets[:scored]))
        tokens, targets = tokens[count:], targets[scored:]
    assert not tokens
    assert not targets
    return rows


def test_parts_have_all_rows_once() -> None:
    rng, shapes = np.random.default_rng(3), small_shapes(shards=SHARDS)
    for _ in range(200):
        plan, found, updates = random_plan(rng), {}, []
        for shard, part in enumerate(split_plan(plan, shapes)):
            first = shard * shapes.max_num_seqs
            found |= {
                index: (slot + first, *others)
                for index, (slot, *others) in zip(part.rows.tolist(), rows_of(part.plan), strict=True)
            }
            of_rows = np.repeat(np.arange(plan.num_rows), plan.scored)
            assert of_rows[part.scored].tolist() == np.repeat(part.rows, part.plan.scored).tolist()
            updates += [(slot + first, index, block) for slot, index, block in part.plan.block_updates[0].tolist()]
            assert all(0 <= slot < shapes.max_num_seqs for slot in part.plan.slots)
        assert [found[index] for index in range(plan.num_rows)] == rows_of(plan)
        assert sorted(map(tuple, updates)) == sorted(map(tuple, plan.block_updates[0].tolist()))


def test_copies_go_to_their_shards() -> None:
    rng, shapes = np.random.default_rng(4), small_shapes(shards=SHARDS)
    packer, layout = Packer(shapes), Layouts(shapes).copies
    assert packer.copies((np.zeros((0, 3), np.int32),)) is None
    for _ in range(50):
        copies = random_plan(rng).copies
        packed = packer.copies(copies)
        if packed is not None:
            sections = [layout.views(section)["copies"][0] for section in np.split(packed, SHARDS)]
            found = [(shard, *row) for shard, rows in enumerate(sections) for row in rows.tolist() if any(row)]
            assert found == [tuple(row) for row in copies[0].tolist()]


def test_results_come_back_to_their_rows() -> None:
    """A device that gives each scored position its slot as token."""
    rng, shapes = np.random.default_rng(4), small_shapes(shards=SHARDS, max_num_batched_tokens=32, max_scored=16)
    packer = Packer(shapes)
    for _ in range(200):
        plan = random_plan(rng)
        step = packer.pack(plan)
        given = np.full(SHARDS * step.scored_bucket, -7, np.int32)
        for shard, part in enumerate(split_plan(plan, shapes)):
            slots = np.repeat(part.plan.slots, part.plan.scored) + shard * shapes.max_num_seqs
            given[shard * step.scored_bucket :][: len(slots)] = slots
        result = step.result_of_scored(step.picked(given), None)
        drawn = plan.samples > 0
        assert result.tokens[drawn, 0].tolist() == plan.slots[drawn].tolist()
        assert result.counts.tolist() == plan.samples.tolist()


def test_each_device_tells_its_memory() -> None:
    stats = core_of().stats()
    assert stats.device.memory_used == stats.device.memory_limit == (40 * 4 * 8,) * 2
