"""Layouts: one int32 array a program call, and one a kind of slot state, read by host and device alike.

Every array of a program is a buffer to hand over, on each device of a mesh: some 0.5 µs each (benchmarks/dispatch.py).
"""

from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.engine.step.slot_init import NEWEST_SCALARS, PARAM_SCALARS
from jaxinfer.sampling import MAX_LOGIT_BIAS, MAX_LOGPROBS, MAX_STOP_TOKEN_IDS


class Layout:
    """Named int32 sections of an array's last axis."""

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
        """Sections by name, the other axes in front: views of a NumPy array, static slices of a traced one."""
        before, sections = packed.shape[:-1], self._sections.items()
        return {name: packed[..., start:end].reshape(before + shape) for name, (start, end, shape) in sections}


NEWEST = Layout(dict.fromkeys(NEWEST_SCALARS, ()))
"""A slot's row of what every drawn token changes."""

SLOT_PARAMS = Layout(
    {
        **dict.fromkeys(PARAM_SCALARS, ()),
        "stop_ids": (MAX_STOP_TOKEN_IDS,),
        "bias_ids": (MAX_LOGIT_BIAS,),
        "bias_values": (MAX_LOGIT_BIAS,),
    }
)
"""A slot's row of what its sequence asked for: ids are -1 where unused, `bias_values` float32."""

LOGPROBS = Layout({"logprobs": (), "ranks": (), "top_ids": (MAX_LOGPROBS,), "top_logprobs": (MAX_LOGPROBS,)})
"""A scored position's row of log-probabilities, as `LogprobArrays` has them."""


class Layouts:
    """The layouts of all programs of one engine."""

    def __init__(self, shapes: EngineShapes):
        self._shapes = shapes
        self._decode: dict[int, Layout] = {}
        self._mixed: dict[int, Layout] = {}
        self._multi_token: dict[int, Layout] = {}

    def decode(self, rows: int) -> Layout:
        """`rows` rows of one token, held by the device."""
        if rows not in self._decode:
            staged = {"starts": (rows,)} if self._shapes.stages > 1 else {}
            self._decode[rows] = Layout({"slots": (rows,), **staged, **self._drawn(rows), **self._updates(rows)})
        return self._decode[rows]

    def multi_token(self, rows: int) -> Layout:
        """`rows` rows, each of up to `row_tokens` tokens that follow one another."""
        if rows not in self._multi_token:
            updates = rows * -(-self._shapes.row_tokens // self._shapes.block_size)
            self._multi_token[rows] = Layout(
                {
                    "slots": (rows,),
                    "counts": (rows,),
                    "unread": (rows,),
                    **self._drawn(rows),
                    **self._updates(updates),
                }
            )
        return self._multi_token[rows]

    def mixed(self, tokens: int) -> Layout:
        """Up to `tokens` tokens over as many rows, of which the first `num_decode` are held by the device."""
        if tokens not in self._mixed:
            rows = min(tokens, self._shapes.max_num_seqs)
            scored = min(tokens, self._shapes.max_scored)
            updates = rows + tokens // self._shapes.block_size
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
                    **self._drawn(rows),
                    **self._updates(updates),
                }
            )
        return self._mixed[tokens]

    def masks(self, rows: int) -> Layout:
        """`rows` masks, and their places: of slot s from s · `slot_masks` on."""
        return Layout({"places": (rows,), "masks": (rows, self._shapes.mask_words)})

    def history(self, tokens: int) -> Layout:
        """Tokens that slots have at some of their positions."""
        return Layout({"slots": (tokens,), "positions": (tokens,), "tokens": (tokens,)})

    @cached_property
    def copies(self) -> Layout:
        """Up to `copy_blocks` blocks of each group, (source, destination)."""
        return Layout({"copies": (len(self._shapes.groups), self._shapes.copy_blocks, 2)})

    @cached_property
    def admit(self) -> Layout:
        """`admit_slots` admissions and a chunk of penalty counts."""
        s = self._shapes
        return Layout(
            {
                "slot": (s.admit_slots,),
                "newest": (s.admit_slots, NEWEST.size),
                "params": (s.admit_slots, SLOT_PARAMS.size),
                "tables": (len(s.groups), s.admit_slots, s.blocks_per_row),
                "counts": (s.admit_counts, 3),
            }
        )

    def _drawn(self, rows: int) -> dict[str, tuple[int, ...]]:
        """Return the section `drawn`, which only pipelines have: their first stage sees new tokens later than the
        last."""
        return {"drawn": (rows,)} if self._shapes.stages > 1 else {}

    def _updates(self, updates: int) -> dict[str, tuple[int, ...]]:
        return {"updates": (len(self._shapes.groups), updates, 3)}
