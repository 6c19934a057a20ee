"""`speculate`: drafts the next tokens of each row, computes them all at once, and keeps what plain decoding would draw.

A position draws what it would draw by itself: with its own uniform number, counts that the drafts before it have
changed, `min_tokens`, bias and thresholds. A draft stays while it equals that draw (drafter-invariant speculation,
arXiv:2408.07978), so tokens depend neither on drafts nor on how many there are.

Where rows draw under masks, the host has to see drafts before it knows the masks that come after them: then `draft`,
`verify` and `accept` are programs of their own, and masks are filled while the second runs.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer.engine.step.layouts import Layouts
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.drafting.drafter import Drafter, DraftRows
from jaxinfer.runner.state import Newest, SlotState, set_history, stop_ids, unpack_newest, unpack_params
from jaxinfer.runner.step.begun_rows import Passed
from jaxinfer.runner.step.forward import Arrays, Forward, ForwardPrograms, short_rows, updated_tables
from jaxinfer.runner.step.multi_step import MultiTokenProgram, RowTokens
from jaxinfer.runner.step.sample import counted, packed_logprobs, sampled_tokens
from jaxinfer.runner.step.stage import Stage
from jaxinfer.runner.step.stage_slots import handed_back, updated

SAMPLED_AT_ONCE = 256
"""Positions that are sampled at once, at most: as many as a sample of 256 rows, which needs 0.9 GB for a vocabulary of
152k."""
_SCALARS = 5
"""Numbers of a row of packed `Drafted` before its drafts."""


class Drafted(NamedTuple):
    """Rows with their drafts, int32. last, length: the newest token of each row and its position, [R]. count: how many
    of its drafts are used, [R]. open, predicted: bool [R], rows that get tokens, and those whose drafts come from a
    prediction. drafts: [R, K]."""

    last: jax.Array
    length: jax.Array
    count: jax.Array
    open: jax.Array
    predicted: jax.Array
    drafts: jax.Array

    def packed(self) -> jax.Array:
        """int32 [R, drafted_width]."""
        return jnp.column_stack([*self[:-1], self.drafts]).astype(jnp.int32)

    @classmethod
    def unpacked(cls, rows: Any) -> "Drafted":
        """rows: as `packed` gives them, here or on the host."""
        last, length, count, is_open, predicted = rows[:, :_SCALARS].T
        return cls(last, length, count, is_open > 0, predicted > 0, rows[:, _SCALARS:])

    @property
    def tokens(self) -> jax.Array:
        """Tokens of each row to be computed: its newest token and its drafts, [R, K + 1]."""
        return jnp.concatenate([self.last[:, None], self.drafts], axis=1)

    @property
    def counts(self) -> jax.Array:
        """Number of each row's `tokens` that are computed, [R]."""
        return jnp.where(self.open, 1 + self.count, 0)


class AcceptedDrafts(NamedTuple):
    """Results of `accept`: state is its donated argument, the others are as in `RowTokens`. back: of the last of
    several stages, as `handed_back` gives it."""

    state: SlotState
    tokens: jax.Array
    counts: jax.Array
    logprobs: jax.Array
    back: jax.Array | None = None


def drafted_width(shapes: EngineShapes) -> int:
    """Numbers of a row of packed `Drafted`."""
    return _SCALARS + shapes.row_tokens - 1


class SpeculateProgram(MultiTokenProgram):
    """Drafts, and a forward pass and samples over them, of one model, or of a stage of one. drafter: who drafts; None
    in a stage that is not the first.

    The first stage drafts since it is what begins a step: drafts of the last stage would wait there for all steps
    before them. Counts of tokens are the last stage's alone: drafts of several stages know no penalties for tokens
    before them, which makes fewer of them right, and never changes what is drawn.
    """

    def __init__(
        self,
        model: LoadedModel,
        shapes: EngineShapes,
        layouts: Layouts,
        forward: ForwardPrograms,
        drafter: Drafter | None,
        stage: Stage,
    ):
        super().__init__(model, shapes, layouts, forward)
        self._drafter = drafter
        self._stage = stage

    def __call__(
        self,
        rows: int,
        weights: Arrays,
        head: Arrays,
        kv: Arrays,
        tables: Arrays,
        state: SlotState,
        params: jax.Array,
        load: jax.Array | None,
        packed: jax.Array,
    ) -> RowTokens:
        """A row ends with the tokens it may make, with a stop id, or where its logits are not finite."""
        kv, tables, drafted, _ = self.draft(rows, weights, head, kv, tables, state, params, None, packed)
        verified = self.verify(rows, weights, kv, tables, drafted, load, packed)
        given = self.accept(rows, head, state, params, None, verified.hidden, drafted, packed)
        return RowTokens(verified.kv, tables, given.state, verified.load, given.tokens, given.counts, given.logprobs)

    def draft(
        self,
        rows: int,
        weights: Arrays,
        head: Arrays,
        kv: Arrays,
        tables: Arrays,
        state: SlotState,
        params: jax.Array,
        given: jax.Array | None,
        packed: jax.Array,
    ) -> tuple[Arrays, Arrays, jax.Array, SlotState | None]:
        """kv and tables, which are donated, packed `Drafted`, and state where it has changed: then it is donated, too.
        given: in the first of several stages, as `handed_back` returns it."""
        assert self._drafter is not None
        view, changed = self._layouts.multi_token(rows).views(packed), None
        if given is not None:
            state = changed = updated(state, given, view["slots"], view["drawn"] > 0)
        tables, slots = updated_tables(tables, view, self._stage.groups), view["slots"]
        asked = self._rows(state, slots, view["counts"], view["unread"])
        kv, tokens, count, predicted = self._drafter.draft(weights, head, kv, tables, state, params, asked)
        last = unpack_newest(state.newest).last_token[slots]
        return kv, tables, Drafted(last, asked.length, count, asked.open, predicted, tokens).packed(), changed

    def verify(
        self,
        rows: int,
        weights: Arrays,
        kv: Arrays,
        tables: Arrays,
        given: jax.Array | Passed,
        load: jax.Array | None,
        packed: jax.Array,
    ) -> Forward:
        """The forward pass over each row's newest token and its drafts; hidden is [R (K + 1), d]. kv is donated. given:
        packed `Drafted`, in a stage that is not the first as `Passed.rows`: that donates and returns tables, too."""
        view, passed = self._layouts.multi_token(rows).views(packed), given if isinstance(given, Passed) else None
        slots, drafted = view["slots"], Drafted.unpacked(given if passed is None else passed.rows)
        if passed is not None:  # the first stage has done so, to draft
            tables = updated_tables(tables, view, self._stage.groups)
        step = short_rows(drafted.tokens, drafted.length, drafted.counts, tuple(table[slots] for table in tables))
        step = step if passed is None else step._replace(tokens=passed.hidden)
        hidden, kv, load, tapped = self._forward.layers(weights, kv, load, step)
        if self._drafter is not None and self._drafter.features is not None:
            slots = jnp.where(drafted.open, slots, self._shapes.scratch_slot)
            kv = self._drafter.features.keep(weights, kv, slots, drafted.length, drafted.tokens, tapped)
        hidden = self._forward.normed(weights, hidden) if self._stage.is_last else hidden
        return Forward(kv, () if passed is None else tables, load, hidden)

    def accept(
        self,
        rows: int,
        head: Arrays,
        state: SlotState,
        params: jax.Array,
        masks: jax.Array | None,
        hidden: jax.Array,
        drafted: jax.Array,
        packed: jax.Array,
        legal: jax.Array | None = None,
    ) -> "AcceptedDrafts":
        """Draw at each position, and return what rows gain by it. state is donated. masks: None: no row is constrained.
        legal: int32 [R], drafts that may be kept; None: all."""
        slots, given = self._layouts.multi_token(rows).views(packed)["slots"], Drafted.unpacked(drafted)
        tokens, logprobs = self._sample(head, state, params, masks, hidden, slots, given)
        state, gained, accepted = self._keep(state, params, slots, given, tokens, legal)
        count = jnp.where(given.open, given.count, 0)
        counts = jnp.stack([gained, count, accepted, given.predicted & (count > 0)], axis=1)
        back = handed_back(state, self._shapes.row_tokens) if self._stage.count > 1 else None
        return AcceptedDrafts(state, tokens, counts, logprobs, back)

    def _rows(self, state: SlotState, slots: jax.Array, most: jax.Array, unread: jax.Array) -> DraftRows:
        """most: tokens that each row may get, [R]."""
        newest = Newest(*(field[slots] for field in unpack_newest(state.newest)))
        room = jnp.minimum(most, newest.remaining)
        is_open = (slots != self._shapes.scratch_slot) & (room > 0)
        length, room = jnp.where(is_open, newest.length, 0), jnp.where(is_open, room - 1, 0)
        return DraftRows(slots, length, jnp.minimum(unread, length + 1), room, is_open)

    def _sample(
        self,
        head: Arrays,
        state: SlotState,
        params: jax.Array,
        masks: jax.Array | None,
        hidden: jax.Array,
        slots: jax.Array,
        drafted: Drafted,
    ) -> tuple[jax.Array, jax.Array]:
        """Draw at each position of each row: tokens, int32 [R, K + 1], and packed log-probabilities, [R, K + 1, ...].
        hidden: [R (K + 1), d]."""
        rows, width = drafted.tokens.shape
        within = jnp.arange(width, dtype=jnp.int32)
        positions = drafted.length[:, None] + within + 1
        # A position comes after the drafts before it: of position j the first j.
        before = jnp.where(within[:-1] < within[:, None], drafted.drafts[:, None], -1)

        def draw(each: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            hidden, slots, within, positions, before = (array.reshape(-1, *array.shape[2:]) for array in each)
            own, logits = unpack_params(params[slots]), self._model.logits(head[: len(self._model.head)], hidden)
            where = slots * width + within
            sampled = sampled_tokens(
                self._model, logits, state.counts, slots, own, positions, None, masks, before=before, places=where
            )
            return sampled.tokens, packed_logprobs(sampled.logprobs)

        at_once = max(SAMPLED_AT_ONCE // width, 1)
        slots, places = (jnp.broadcast_to(array, (rows, width)) for array in (slots[:, None], within))
        every = (hidden.reshape(rows, width, -1), slots, places, positions, before)
        if rows <= at_once:
            tokens, logprobs = draw(every)
            return tokens.reshape(rows, width), logprobs.reshape(rows, width, -1)
        # Rows that fill the last part are copies of the first ones.
        fill = jnp.arange(-(-rows // at_once) * at_once) % rows
        parts = tuple(array[fill].reshape(-1, at_once, *array.shape[1:]) for array in every)
        tokens, logprobs = jax.lax.map(draw, parts)
        return tokens.reshape(-1, width)[:rows], logprobs.reshape(len(fill), width, -1)[:rows]

    def _keep(
        self,
        state: SlotState,
        params: jax.Array,
        slots: jax.Array,
        drafted: Drafted,
        tokens: jax.Array,
        legal: jax.Array | None,
    ) -> tuple[SlotState, jax.Array, jax.Array]:
        """State with what each row has gained, how many tokens that is, and how many of them were drafts: int32 [R]."""
        within = jnp.arange(tokens.shape[1], dtype=jnp.int32)
        accepted = jnp.where(drafted.open, kept(drafted.drafts, drafted.count, tokens), 0)
        # A draft after which nothing may follow is drawn, too, and is the row's last token.
        before_last = accepted if legal is None else jnp.minimum(accepted, legal)
        gained = jnp.where(drafted.open, 1 + before_last, 0)
        ends = (tokens < 0) | jnp.any(stop_ids(params, slots)[:, None] == tokens[:, :, None], axis=2)
        ends &= within < gained[:, None]
        ended = jnp.any(ends, axis=1)
        gained = jnp.where(ended, jnp.argmax(ends, axis=1).astype(jnp.int32) + 1, gained)
        own = jnp.where(drafted.open, slots, self._shapes.scratch_slot)
        last = jnp.take_along_axis(tokens, jnp.maximum(gained - 1, 0)[:, None], axis=1)[:, 0]
        remaining = jnp.where(ended, 0, unpack_newest(state.newest).remaining[own] - gained)
        newest = Newest(drafted.length + gained, jnp.maximum(last, 0), remaining)
        new = within < gained[:, None]
        places = jnp.where(new, own[:, None], self._shapes.scratch_slot)
        state = set_history(state, places, drafted.length[:, None] + 1 + within, jnp.maximum(tokens, 0))
        counts = state.counts
        assert counts is not None
        for step in range(tokens.shape[1]):  # one after another: a token that comes twice counts twice
            drawn = new[:, step] & (tokens[:, step] >= 0)
            counts = counted(self._model, counts, places[:, step], tokens[:, step], drawn, params)
        state = state._replace(newest=state.newest.at[own].set(newest.packed()), counts=counts)
        return state, gained, jnp.minimum(accepted, gained)


def kept(drafts: jax.Array, count: jax.Array, tokens: jax.Array) -> jax.Array:
    """Count each row's leading drafts that equal what their positions draw, int32 [R]. drafts: [R, K], of which a row
    uses the first `count`. tokens: [R, K + 1]."""
    used = jnp.arange(drafts.shape[1]) < count[:, None]
    return jnp.sum(jnp.cumprod((drafts == tokens[:, :-1]) & used, axis=1), axis=1, dtype=jnp.int32)
