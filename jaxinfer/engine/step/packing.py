"""One int32 array a program call: its layout, read by host and device alike, and how a plan is packed."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from jaxinfer.engine.step.plan import SlotInit, StepPlan
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.sampling import MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS

_INT_FIELDS = ("slot", "length", "last_token", "prompt_len", "remaining", "seed_low", "seed_high", "choice",
               "top_k", "min_tokens", "uses_counts", "wants_logprobs")  # fmt: skip
_FLOAT_FIELDS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


class Layout:
    """Named int32 sections of one flat array."""

    def __init__(self, sections: dict[str, tuple[int, ...]]):
        self._sections: dict[str, tuple[int, int, tuple[int, ...]]] = {}
        at = 0
        for name, shape in sections.items():
            self._sections[name] = (at, at + prod(shape), shape)
            at += prod(shape)
        self.size = at

    def new(self) -> np.ndarray:
        """A fresh array of zeros. Never reused: a step in flight may still read the last one."""
        return np.zeros(self.size, np.int32)

    def views(self, packed: Any) -> dict[str, Any]:
        """Sections by name: views of a NumPy array, static slices of a traced one."""
        return {name: packed[start:end].reshape(shape) for name, (start, end, shape) in self._sections.items()}


class Layouts:
    """The layouts of all programs of one engine."""

    def __init__(self, shapes: EngineShapes):
        self._shapes = shapes
        self._decode: dict[int, Layout] = {}
        self._mixed: dict[int, Layout] = {}
        self._burst: dict[int, Layout] = {}

    def decode(self, rows: int) -> Layout:
        """`rows` rows of one token, held by the device."""
        if rows not in self._decode:
            self._decode[rows] = Layout({"slots": (rows,), **self._pages(rows)})
        return self._decode[rows]

    def burst(self, rows: int) -> Layout:
        """`rows` rows, each of up to `decode_steps` tokens that follow one another."""
        if rows not in self._burst:
            updates = rows * -(-self._shapes.decode_steps // self._shapes.page_size)
            self._burst[rows] = Layout({"slots": (rows,), "counts": (rows,), **self._pages(updates)})
        return self._burst[rows]

    def mixed(self, tokens: int) -> Layout:
        """Up to `tokens` tokens over as many rows, of which the first `num_decode` are held by the device."""
        if tokens not in self._mixed:
            rows = min(tokens, self._shapes.max_num_seqs)
            scored = min(tokens, self._shapes.max_scored)
            updates = rows + tokens // self._shapes.page_size
            self._mixed[tokens] = Layout(
                {
                    "num_decode": (1,),
                    "slots": (rows,),
                    "starts": (rows,),
                    "counts": (rows,),
                    "tokens": (tokens,),
                    "scored_row": (scored,),
                    "scored_token": (scored,),
                    "draws": (scored,),
                    "targets": (scored,),
                    **self._pages(updates),
                }
            )
        return self._mixed[tokens]

    @cached_property
    def admit(self) -> Layout:
        """`admit_slots` admissions and a chunk of penalty counts."""
        s = self._shapes
        sections: dict[str, tuple[int, ...]] = dict.fromkeys(_INT_FIELDS + _FLOAT_FIELDS, (s.admit_slots,))
        sections |= {
            "stop_ids": (s.admit_slots, MAX_STOP_TOKEN_IDS),
            "bias_ids": (s.admit_slots, MAX_LOGIT_BIAS),
            "bias_values": (s.admit_slots, MAX_LOGIT_BIAS),
            "tables": (len(s.groups), s.admit_slots, s.pages_per_row),
            "counts": (s.admit_counts, 3),
        }
        return Layout(sections)

    def _pages(self, updates: int) -> dict[str, tuple[int, ...]]:
        groups = len(self._shapes.groups)
        return {"updates": (groups, updates, 3), "copies": (groups, self._shapes.copy_pages, 2)}


class Packer:
    """Packs plans and admissions. Padding rows use the scratch slot, padding pages the scratch page."""

    def __init__(self, shapes: EngineShapes, layouts: Layouts):
        self._shapes = shapes
        self._layouts = layouts

    def decode(self, plan: StepPlan, bucket: int) -> np.ndarray:
        """A decode-only plan, int32 [layouts.decode(bucket).size]."""
        layout = self._layouts.decode(bucket)
        packed = layout.new()
        view = layout.views(packed)
        view["slots"][:] = self._shapes.scratch_slot
        view["slots"][: plan.num_rows] = plan.slots
        self._pack_pages(view, plan)
        return packed

    def burst(self, plan: StepPlan, bucket: int) -> np.ndarray:
        """A plan of several decode steps, int32 [layouts.burst(bucket).size]."""
        layout = self._layouts.burst(bucket)
        packed = layout.new()
        view = layout.views(packed)
        view["slots"][:] = self._shapes.scratch_slot
        view["slots"][: plan.num_rows] = plan.slots
        view["counts"][: plan.num_rows] = plan.counts
        self._pack_pages(view, plan)
        return packed

    def mixed(self, plan: StepPlan, bucket: int) -> np.ndarray:
        """Any plan, int32 [layouts.mixed(bucket).size]."""
        layout = self._layouts.mixed(bucket)
        packed = layout.new()
        view = layout.views(packed)
        rows = plan.num_rows
        view["num_decode"][0] = plan.num_decode
        view["slots"][:] = self._shapes.scratch_slot
        view["slots"][:rows] = plan.slots
        view["starts"][:rows] = plan.starts
        view["counts"][:rows] = plan.counts
        view["tokens"][plan.num_decode : plan.num_tokens] = plan.tokens
        self._pack_scored(view, plan)
        self._pack_pages(view, plan)
        return packed

    def no_admissions(self) -> np.ndarray:
        """A call of `admit` that changes nothing but the scratch slot."""
        return self._admit((), np.zeros((0, 3), np.int32))

    def admissions(self, admissions: Sequence[SlotInit]) -> Iterator[np.ndarray]:
        """As many arrays as it takes, to be run in order."""
        pending = _count_entries(admissions)
        for first in range(0, len(admissions), self._shapes.admit_slots):
            group = admissions[first : first + self._shapes.admit_slots]
            last_group = first + self._shapes.admit_slots >= len(admissions)
            yield self._admit(group, pending[:0] if not last_group else pending[: self._shapes.admit_counts])
        for first in range(self._shapes.admit_counts, len(pending), self._shapes.admit_counts):
            yield self._admit((), pending[first : first + self._shapes.admit_counts])

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
        view["draws"][last_of_row[plan.draws]] = 1
        view["targets"][plan.num_decode : total] = plan.targets

    def _pack_pages(self, view: dict[str, np.ndarray], plan: StepPlan) -> None:
        view["updates"][:, :, 0] = self._shapes.scratch_slot
        for group, (updates, copies) in enumerate(zip(plan.page_updates, plan.copies, strict=True)):
            view["updates"][group, : len(updates)] = updates
            view["copies"][group, : len(copies)] = copies

    def _admit(self, admissions: Sequence[SlotInit], counts: np.ndarray) -> np.ndarray:
        layout = self._layouts.admit
        packed = layout.new()
        view = layout.views(packed)
        view["slot"][:] = self._shapes.scratch_slot
        view["stop_ids"][:] = -1
        view["bias_ids"][:] = -1
        view["counts"][:, 0] = self._shapes.scratch_slot
        view["counts"][: len(counts)] = counts
        for i, admission in enumerate(admissions):
            _pack_admission(view, i, admission)
        return packed


def _pack_admission(view: dict[str, np.ndarray], i: int, admission: SlotInit) -> None:
    params = admission.params
    seed = admission.seed & 0xFFFFFFFFFFFFFFFF
    ints = (admission.slot, admission.length, admission.last_token, admission.prompt_len, admission.remaining,
            _int32(seed & 0xFFFFFFFF), _int32(seed >> 32), admission.choice, params.top_k, params.min_tokens,
            params.uses_counts, params.logprobs is not None)  # fmt: skip
    for name, value in zip(_INT_FIELDS, ints, strict=True):
        view[name][i] = value
    for name in _FLOAT_FIELDS:
        view[name].view(np.float32)[i] = getattr(params, name)
    view["stop_ids"][i, : len(admission.stop_ids)] = admission.stop_ids
    count = len(params.logit_bias)
    view["bias_ids"][i, :count] = list(params.logit_bias.keys())
    view["bias_values"].view(np.float32)[i, :count] = list(params.logit_bias.values())
    for group, pages in enumerate(admission.pages):
        view["tables"][group, i, : len(pages)] = pages


def _count_entries(admissions: Sequence[SlotInit]) -> np.ndarray:
    """(slot, token, packed count) of every admission that brings counts, int32 [n, 3]."""
    entries = [np.zeros((0, 3), np.int32)]
    for admission in admissions:
        if admission.counts is not None:
            ids, values = admission.counts
            entries.append(np.stack([np.full_like(ids, admission.slot), ids, values], axis=1))
    return np.concatenate(entries)


def _int32(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value
