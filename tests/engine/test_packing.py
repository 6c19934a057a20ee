"""What is packed is read back, row by row, and gives the plan again."""

from typing import Any

import numpy as np
import pytest

from jaxinfer.engine.step.layouts import NEWEST, SLOT_PARAMS, Layouts
from jaxinfer.engine.step.packing import Packer
from jaxinfer.engine.step.plan import StepKind, StepPlan
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.engine.step.slot_init import SlotInit
from jaxinfer.sampling import SamplingParams, columns
from tests.parameter_values import another_value

SHAPES = EngineShapes(
    6, 40, 9, 64, 4, (KVGroup(None, 30), KVGroup(8, 20)), 61, admit_slots=2, admit_counts=5, copy_blocks=3
)
LAYOUTS = Layouts(SHAPES)
PACKER = Packer(SHAPES)


def random_plan(rng: np.random.Generator, *, decode_only: bool) -> StepPlan:
    slots = rng.permutation(SHAPES.max_num_seqs)[: rng.integers(1, SHAPES.max_num_seqs + 1)].astype(np.int32)
    held = len(slots) if decode_only else int(rng.integers(0, len(slots)))
    counts, scored, samples = np.ones((3, len(slots)), np.int32)
    left = SHAPES.max_scored - len(slots)
    targets: list[int] = []
    for row in range(held, len(slots)):
        counts[row] = rng.integers(1, 6)
        scored[row] = rng.integers(0, min(counts[row], 1 + left) + 1)
        left -= max(scored[row] - 1, 0)
        samples[row] = scored[row] > 0 and rng.random() < 0.7
        wanted = rng.integers(0, 61, scored[row]).tolist()
        targets += [*wanted[:-1], -1] if samples[row] else wanted
    rows = [np.stack([slots, slots + 1, rng.integers(1, 20, len(slots))], 1).astype(np.int32) for _ in SHAPES.groups]
    return StepPlan(
        kind=StepKind.DECODE if decode_only else StepKind.MIXED,
        index=3,
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
        targets=np.array(targets, np.int32),
        block_updates=tuple(rows),
        copies=tuple(_copies(rng, group + 1) for group in range(len(SHAPES.groups))),
        logprobs=False,
    )


def _copies(rng: np.random.Generator, count: int) -> np.ndarray:
    """Of the only shard's blocks."""
    return np.insert(rng.integers(1, 20, (count, 2)).astype(np.int32), 0, 0, axis=1)


def check_blocks(view: dict[str, Any], plan: StepPlan) -> None:
    for group, updates in enumerate(plan.block_updates):
        packed = [tuple(row) for row in view["updates"][group].tolist()]
        assert packed[: len(updates)] == [tuple(row) for row in updates.tolist()]
        assert all(row[0] == SHAPES.scratch_slot and row[2] == 0 for row in packed[len(updates) :])
    packed = PACKER.copies(plan.copies)
    assert packed is not None
    for own, copies in zip(plan.copies, LAYOUTS.copies.views(packed)["copies"].tolist(), strict=True):
        assert copies[: len(own)] == own[:, 1:].tolist()
        assert all(row == [0, 0] for row in copies[len(own) :])  # the scratch block onto itself


def test_mixed_plans_are_read_back() -> None:
    rng = np.random.default_rng(40)
    for _ in range(200):
        plan = random_plan(rng, decode_only=False)
        step = PACKER.pack(plan)
        assert plan.num_tokens <= step.bucket
        assert step.sampled is not None
        view = LAYOUTS.mixed(step.bucket).views(step.array)
        check_blocks(view, plan)
        held = int(view["num_decode"][0])
        assert held == plan.num_decode
        at, tokens, scored = 0, [], []
        for row in range(plan.num_rows):
            assert view["slots"][row] == plan.slots[row]
            assert view["starts"][row] == plan.starts[row]
            count = int(view["counts"][row])
            assert count == plan.counts[row]
            if row >= held:
                tokens += view["tokens"][at : at + count].tolist()
            wanted = int(plan.scored[row])
            scored += [
                (row, at + count - wanted + i, bool(plan.samples[row]) and i == wanted - 1) for i in range(wanted)
            ]
            at += count
        assert tokens == plan.tokens.tolist()
        found = zip(view["scored_row"], view["scored_token"], view["draws"] == 1, strict=True)
        assert [tuple(map(int, entry)) for entry in found][: len(scored)] == [tuple(map(int, e)) for e in scored]
        targets = [-1] * held + plan.targets.tolist()
        assert view["targets"].tolist() == targets + [-1] * (len(view["targets"]) - len(targets))
        # Padding draws nothing, computes nothing, and belongs to nobody.
        assert not view["draws"][len(scored) :].any()
        assert not view["counts"][plan.num_rows :].any()
        assert (view["slots"][plan.num_rows :] == SHAPES.scratch_slot).all()


def test_decode_plans_are_read_back() -> None:
    rng = np.random.default_rng(41)
    for _ in range(50):
        plan = random_plan(rng, decode_only=True)
        step = PACKER.pack(plan)
        view = LAYOUTS.decode(step.bucket).views(step.array)
        assert view["slots"].tolist() == plan.slots.tolist() + [SHAPES.scratch_slot] * (step.bucket - plan.num_rows)
        if max(map(len, plan.block_updates)) <= step.bucket:
            check_blocks(view, plan)


def admission(slot: int, rng: np.random.Generator) -> SlotInit:
    asked: dict[str, Any] = {name: another_value(name) for name in columns()}
    asked |= {"temperature": float(np.float32(rng.random())), "top_k": int(rng.integers(0, 9))}
    params = SamplingParams(
        **asked,
        max_tokens=9,
        logit_bias={int(t): float(t) - 8 for t in rng.permutation(61)[:4]},
        logprobs=int(rng.integers(0, 3)) if slot % 2 else None,
    )
    counts = None
    if slot % 3:
        ids = rng.permutation(61)[: rng.integers(1, 9)].astype(np.int32)
        counts = (ids, rng.integers(1, 2**15 - 1, len(ids)).astype(np.int32))
    blocks = tuple(rng.integers(1, 19, rng.integers(0, 16)).tolist() for _ in SHAPES.groups)
    seed = [2**63 - 1, -(2**63), -1, 0, 2**64 - 1, 5][slot]
    stop_ids = tuple(rng.permutation(61)[: rng.integers(0, 5)].tolist())
    return SlotInit(slot, 20 + slot, 7, 15, 9, seed, slot, params, stop_ids, blocks, counts)


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_admissions_are_read_back(count) -> None:
    """Applied in order as the device does: counts of a slot are cleared by its admission and set after it."""
    rng = np.random.default_rng(42)
    given = [admission(int(slot), rng) for slot in rng.permutation(6)[:count]]
    rows: dict[int, dict[str, Any]] = {}
    counts = np.full((SHAPES.num_slots, 61), 99)
    for packed in PACKER.slots(given):
        view = LAYOUTS.admit.views(packed)
        view |= NEWEST.views(view.pop("newest")) | SLOT_PARAMS.views(view.pop("params"))
        for i, slot in enumerate(view["slot"].tolist()):
            if view["uses_counts"][i] or slot == SHAPES.scratch_slot:
                counts[slot] = 0
            if slot != SHAPES.scratch_slot:
                assert slot not in rows
                rows[slot] = {
                    name: view[name][:, i] if name == "tables" else view[name][i] for name in view if name != "counts"
                }
        for slot, token, value in view["counts"].tolist():
            counts[slot, token] = value
    assert set(rows) == {a.slot for a in given}
    for a in given:
        _check_row(rows[a.slot], a)
        if a.counts is not None:
            expected = np.zeros(61, int)
            expected[a.counts[0]] = a.counts[1]
            np.testing.assert_array_equal(counts[a.slot], expected)


def _check_row(row: dict[str, Any], a: SlotInit) -> None:
    for name in ("length", "last_token", "prompt_len", "remaining", "sequence_index"):
        assert row[name] == getattr(a, name)
    for name in ("top_k", "min_tokens"):
        assert row[name] == getattr(a.params, name)
    floats = columns().keys() - {"top_k", "min_tokens"}
    assert floats >= {"temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"}
    for name in floats:
        assert row[name].view(np.float32) == np.float32(getattr(a.params, name))
    words = (int(row["seed_high"]) & 0xFFFFFFFF) << 32 | int(row["seed_low"]) & 0xFFFFFFFF
    assert words == a.seed % 2**64
    assert row["uses_counts"] == 1
    assert row["wants_logprobs"] == (a.params.logprobs is not None)
    assert row["stop_ids"].tolist()[: len(a.stop_ids)] == list(a.stop_ids)
    assert (row["stop_ids"][len(a.stop_ids) :] == -1).all()
    used = row["bias_ids"] >= 0
    values = row["bias_values"].view(np.float32)[used].tolist()
    assert dict(zip(row["bias_ids"][used].tolist(), values, strict=True)) == a.params.logit_bias
    for group, blocks in enumerate(a.blocks):
        assert row["tables"][group].tolist() == blocks + [0] * (SHAPES.blocks_per_row - len(blocks))


def test_no_array_is_used_twice() -> None:
    plan = random_plan(np.random.default_rng(43), decode_only=True)
    first, second = PACKER.pack(plan).array, PACKER.pack(plan).array
    assert not np.shares_memory(first, second)
    first[:] = 7
    assert PACKER.pack(plan).array.tolist() == second.tolist()
