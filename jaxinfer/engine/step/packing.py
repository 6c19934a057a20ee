"""Packer: turns plans into the arrays that runners are called with."""

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

import numpy as np

from jaxinfer.engine.step.buckets import Buckets, bucket_of, bucket_of_plan, make_buckets
from jaxinfer.engine.step.layouts import NEWEST, SLOT_PARAMS, Layout, Layouts
from jaxinfer.engine.step.packed import PackedHistory, PackedMasks, PackedStep
from jaxinfer.engine.step.plan import MULTI_TOKEN, StepKind, StepPlan
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.engine.step.slot_init import NEWEST_SCALARS, PARAM_SCALARS, SlotInit
from jaxinfer.engine.step.split import ShardPlan, split_plan


class Packer:
    """Packs plans and slot initialisations, a section a shard. Padding rows use the scratch slot, padding blocks the
    scratch block."""

    def __init__(self, shapes: EngineShapes, buckets: Callable[[], Buckets] | None = None):
        """buckets: the sizes that may be packed for now; by default all."""
        self._shapes = shapes
        self._layouts = Layouts(shapes)
        every = make_buckets(shapes)
        self._buckets = buckets or (lambda: every)

    @property
    def buckets(self) -> Buckets:
        """The sizes that may be packed for now."""
        return self._buckets()

    def pack(self, plan: StepPlan, masked: bool = False) -> PackedStep:
        """A plan with rows. masked: one that drafts waits for masks of its drafts."""
        buckets = self.buckets
        if masked and plan.kind is StepKind.SPECULATE and self._shapes.stages == 1:
            buckets = buckets._replace(rows=buckets.checked)
        return self._pack(plan, bucket_of_plan(plan, buckets, self._shapes))

    def padding(self, kind: StepKind, bucket: int) -> PackedStep:
        """A step that computes nothing, to run a program once."""
        return self._pack(_empty_plan(kind, len(self._shapes.groups)), bucket)

    def one_row(self, kind: StepKind, bucket: int) -> PackedStep:
        """A step that computes one token of slot 0, which nobody has yet, over the scratch block."""
        zero, one = np.zeros(1, np.int32), np.ones(1, np.int32)
        row = {"slots": zero, "epochs": zero, "starts": zero, "counts": one, "scored": one, "samples": one}
        plan = _empty_plan(kind, len(self._shapes.groups))._replace(**row, unread=zero, num_decode=1)
        return self._pack(plan, bucket)

    def _pack(self, plan: StepPlan, bucket: int) -> PackedStep:
        if self._shapes.shards == 1:
            return self._packed(plan, bucket, self._array(plan, bucket), plan.num_scored, ())
        parts = split_plan(plan, self._shapes)
        array = np.concatenate([self._array(part.plan, bucket) for part in parts])
        return self._packed(plan, bucket, array, max(part.plan.num_scored for part in parts), parts)

    def _packed(
        self, plan: StepPlan, bucket: int, array: np.ndarray, scored: int, parts: Sequence[ShardPlan]
    ) -> PackedStep:
        """scored: positions of the shard with most. parts: of several shards."""
        by_rows = plan.kind in MULTI_TOKEN
        size = bucket if by_rows else bucket_of(scored, self.buckets.scored) if scored else 0
        return PackedStep(
            plan.kind,
            bucket,
            array,
            plan.num_rows,
            num_scored=0 if by_rows else plan.num_scored,
            scored_bucket=0 if by_rows else size,
            sampled=np.where(plan.samples > 0, plan.last_scored, -1) if plan.kind is StepKind.MIXED else None,
            logprobs=plan.logprobs,
            places=_places([part.rows if by_rows else part.scored for part in parts], size) if parts else None,
            index=plan.index,
            needs=plan.needs,
        )

    def _array(self, plan: StepPlan, bucket: int) -> np.ndarray:
        """The section of one shard."""
        if plan.kind is StepKind.MIXED:
            return self._mixed(plan, bucket)
        if plan.kind is StepKind.DECODE:
            packed, view = self._begin(self._layouts.decode(bucket), plan)
            if plan.drawn is not None:
                view["starts"][: plan.num_rows] = plan.starts
            return packed
        array, view = self._begin(self._layouts.multi_token(bucket), plan)
        view["counts"][: plan.num_rows] = plan.samples
        view["unread"][: plan.num_rows] = plan.unread
        return array

    def _mixed(self, plan: StepPlan, bucket: int) -> np.ndarray:
        packed, view = self._begin(self._layouts.mixed(bucket), plan)
        view["num_decode"][0] = plan.num_decode
        view["starts"][: plan.num_rows] = plan.starts
        view["counts"][: plan.num_rows] = plan.counts
        view["tokens"][plan.num_decode : plan.num_tokens] = plan.tokens
        self._pack_scored(view, plan)
        return packed

    def _begin(self, layout: Layout, plan: StepPlan) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """A new array and its sections, with the slots and entries of block tables that every step has."""
        packed = layout.new()
        view = layout.views(packed)
        view["slots"][:] = self._shapes.scratch_slot
        view["slots"][: plan.num_rows] = plan.slots
        view["updates"][:, :, 0] = self._shapes.scratch_slot
        if plan.drawn is not None:
            view["drawn"][: plan.num_rows] = plan.drawn
        for group, updates in enumerate(plan.block_updates):
            view["updates"][group, : len(updates)] = updates
        return packed, view

    def copies(self, copies: Sequence[np.ndarray]) -> np.ndarray | None:
        """Blocks to copy, as `StepPlan.copies` has them; None where there are none."""
        if not any(map(len, copies)):
            return None
        layout, sections = self._layouts.copies, []
        for shard in range(self._shapes.shards):
            array = layout.new()
            for group, rows in enumerate(copies):
                own = rows[rows[:, 0] == shard, 1:]
                layout.views(array)["copies"][group, : len(own)] = own
            sections.append(array)
        return np.concatenate(sections)

    def no_copies(self) -> np.ndarray:
        """The scratch block alone, onto itself."""
        return np.tile(self._layouts.copies.new(), self._shapes.shards)

    def no_slots(self) -> np.ndarray:
        """A slot initialisation that changes nothing but the scratch slot."""
        return np.tile(self._slots((), np.zeros((0, 3), np.int32)), self._shapes.shards)

    def slots(self, admissions: Sequence[SlotInit]) -> Iterator[np.ndarray]:
        """Slot initialisations: as many arrays as it takes, to be run in order."""
        if not admissions:
            return
        count, shards = self._shapes.max_num_seqs, self._shapes.shards
        if shards == 1:
            yield from self._shard_slots(admissions)
            return
        own: list[list[SlotInit]] = [[] for _ in range(shards)]
        for init in admissions:
            own[init.slot // count].append(init._replace(slot=init.slot % count))
        nothing = self._slots((), np.zeros((0, 3), np.int32))
        for sections in zip_longest(*map(self._shard_slots, own), fillvalue=nothing):
            yield np.concatenate(sections)

    def _shard_slots(self, admissions: Sequence[SlotInit]) -> Iterator[np.ndarray]:
        pending = _count_entries(admissions)
        for first in range(0, len(admissions), self._shapes.admit_slots):
            group = admissions[first : first + self._shapes.admit_slots]
            last_group = first + self._shapes.admit_slots >= len(admissions)
            yield self._slots(group, pending[:0] if not last_group else pending[: self._shapes.admit_counts])
        for first in range(self._shapes.admit_counts, len(pending), self._shapes.admit_counts):
            yield self._slots((), pending[first : first + self._shapes.admit_counts])

    def history(self, runs: Sequence[tuple[int, int, np.ndarray]]) -> Iterator[PackedHistory]:
        """Tokens of slots, (slot, position of the first, int32 tokens) each: as many arrays as it takes."""
        if not runs:
            return
        slots, positions, tokens = np.concatenate([_history_entries(*run) for run in runs], axis=1)
        shards, shapes, top = slots // self._shapes.max_num_seqs, self._shapes, self.buckets.history[-1]
        own = [np.flatnonzero(shards == shard) for shard in range(shapes.shards)]
        for first in range(0, max(map(len, own)), top):
            pieces = [each[first : first + top] for each in own]
            bucket = bucket_of(max(map(len, pieces)), self.buckets.history)
            sections = []
            for shard, piece in enumerate(pieces):
                array, view = _filled(self._layouts.history(bucket), shapes.scratch_slot)
                view["slots"][: len(piece)] = slots[piece] - shard * shapes.max_num_seqs
                view["positions"][: len(piece)], view["tokens"][: len(piece)] = positions[piece], tokens[piece]
                sections.append(array)
            yield PackedHistory(bucket, np.concatenate(sections))

    def no_history(self, bucket: int) -> PackedHistory:
        """Tokens of the scratch slot alone."""
        array = _filled(self._layouts.history(bucket), self._shapes.scratch_slot)[0]
        return PackedHistory(bucket, np.tile(array, self._shapes.shards))

    def masks(self, places: np.ndarray, rows: np.ndarray) -> Iterator[PackedMasks]:
        """Masks, int32 [n, words], for some places, each once: as many arrays as it takes. places: of slot s those from
        s · `slot_masks` on."""
        shapes, top = self._shapes, self.buckets.masks[-1]
        size = shapes.max_num_seqs * shapes.slot_masks
        own = [np.flatnonzero(places // size == shard) for shard in range(shapes.shards)]
        for first in range(0, max(map(len, own)), top):
            pieces = [each[first : first + top] for each in own]
            bucket = bucket_of(max(map(len, pieces)), self.buckets.masks)
            sections = []
            for shard, piece in enumerate(pieces):
                array, view = self._no_masks(bucket)
                view["places"][: len(piece)] = places[piece] - shard * size
                view["masks"][: len(piece)] = rows[piece]
                sections.append(array)
            yield PackedMasks(bucket, sections[0] if shapes.shards == 1 else np.concatenate(sections))

    def no_masks(self, bucket: int) -> PackedMasks:
        """Masks of the scratch slot alone."""
        return PackedMasks(bucket, np.tile(self._no_masks(bucket)[0], self._shapes.shards))

    def _no_masks(self, bucket: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        array = self._layouts.masks(bucket).new()
        view = self._layouts.masks(bucket).views(array)
        view["places"][:] = self._shapes.scratch_slot * self._shapes.slot_masks
        return array, view

    def _pack_scored(self, view: dict[str, np.ndarray], plan: StepPlan) -> None:
        view["targets"][:] = -1
        total = plan.num_scored
        if not total:
            return
        row = np.repeat(np.arange(plan.num_rows, dtype=np.int32), plan.scored)
        ends = np.cumsum(plan.counts)
        last_of_row = np.cumsum(plan.scored) - 1
        # The scored positions of a row are its last ones.
        view["scored_row"][:total] = row
        view["scored_token"][:total] = ends[row] - 1 - (last_of_row[row] - np.arange(total))
        view["draws"][last_of_row[plan.samples > 0]] = 1
        view["targets"][plan.num_decode : total] = plan.targets

    def _slots(self, admissions: Sequence[SlotInit], counts: np.ndarray) -> np.ndarray:
        layout = self._layouts.admit
        packed = layout.new()
        view = layout.views(packed)
        count = len(admissions)
        view["slot"][:] = self._shapes.scratch_slot
        view["slot"][:count] = [admission.slot for admission in admissions]
        view["counts"][:, 0] = self._shapes.scratch_slot
        view["counts"][: len(counts)] = counts
        params = SLOT_PARAMS.views(view["params"])
        rows = NEWEST.views(view["newest"]) | params
        params["stop_ids"][:] = params["bias_ids"][:] = -1
        for name, scalar in (NEWEST_SCALARS | PARAM_SCALARS).items():
            rows[name].view(scalar.dtype)[:count] = [scalar.value(admission) for admission in admissions]
        for i, admission in enumerate(admissions):
            _pack_lists(params, i, admission)
            for group, blocks in enumerate(admission.blocks):
                view["tables"][group, i, : len(blocks)] = blocks
        return packed


def _filled(layout: Layout, scratch: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """A new array whose slots are all the scratch slot, and its sections."""
    array = layout.new()
    view = layout.views(array)
    view["slots"][:] = scratch
    return array, view


def _history_entries(slot: int, first: int, tokens: np.ndarray) -> np.ndarray:
    """int32 [3, n]: slot, position and token."""
    positions = np.arange(first, first + len(tokens), dtype=np.int32)
    return np.stack([np.full_like(positions, slot), positions, tokens])


def _places(parts: Sequence[np.ndarray], section: int) -> np.ndarray:
    """Return the index of each row, or each scored position, in results with `section` entries a shard. parts: a
    shard's rows or positions each."""
    places = np.zeros(sum(map(len, parts)), np.int64)
    for shard, part in enumerate(parts):
        places[part] = shard * section + np.arange(len(part))
    return places


def _pack_lists(view: dict[str, np.ndarray], i: int, admission: SlotInit) -> None:
    params = admission.params
    view["stop_ids"][i, : len(admission.stop_ids)] = admission.stop_ids
    count = len(params.logit_bias)
    view["bias_ids"][i, :count] = list(params.logit_bias.keys())
    view["bias_values"].view(np.float32)[i, :count] = list(params.logit_bias.values())


def _count_entries(admissions: Sequence[SlotInit]) -> np.ndarray:
    """(slot, token, packed count) of every admission that brings counts, int32 [n, 3]."""
    entries = [np.zeros((0, 3), np.int32)]
    for admission in admissions:
        if admission.counts is not None:
            ids, values = admission.counts
            entries.append(np.stack([np.full_like(ids, admission.slot), ids, values], axis=1))
    return np.concatenate(entries)


def _empty_plan(kind: StepKind, groups: int) -> StepPlan:
    none = np.zeros(0, np.int32)
    return StepPlan(
        kind=kind,
        index=0,
        admissions=(),
        slots=none,
        epochs=none,
        starts=none,
        counts=none,
        scored=none,
        samples=none,
        unread=none,
        num_decode=0,
        tokens=none,
        targets=none,
        block_updates=(np.zeros((0, 3), np.int32),) * groups,
        copies=(np.zeros((0, 3), np.int32),) * groups,
        logprobs=False,
    )
