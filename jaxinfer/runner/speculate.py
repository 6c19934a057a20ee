"""`speculate`: drafts the next tokens of each row, computes them all at once, and keeps what plain decoding would draw.

A position draws what it would draw by itself: with its own uniform number, counts that the drafts before it have
changed, `min_tokens`, bias and thresholds. A draft stays while it equals that draw (drafter-invariant speculation,
arXiv:2408.07978), so tokens depend neither on drafts nor on how many there are.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer.engine.step.layouts import Layouts
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.drafter import Drafter, Rows
from jaxinfer.runner.forward import Arrays, ForwardPrograms, short_rows, updated_tables
from jaxinfer.runner.multi_step import Burst, BurstProgram
from jaxinfer.runner.sample import counted, packed_logprobs, sampled_tokens
from jaxinfer.runner.state import Newest, SlotState, set_history, stop_ids, unpack_newest, unpack_params

_AT_ONCE = 256
"""Positions that are sampled at once, at most: as many as a sample of 256 rows, which needs 0.9 GB for a vocabulary of
152k."""


class Drafted(NamedTuple):
    """Rows with their drafts, int32. last, length: the newest token of each row and its position, [R]. drafts: [R, K].
    count: how many of them are used, [R]. open: bool [R], rows that get tokens. predicted: bool [R], rows whose drafts
    come from a prediction."""

    last: jax.Array
    length: jax.Array
    drafts: jax.Array
    count: jax.Array
    open: jax.Array
    predicted: jax.Array

    @property
    def tokens(self) -> jax.Array:
        """What is computed of each row: its newest token and its drafts, [R, K + 1]."""
        return jnp.concatenate([self.last[:, None], self.drafts], axis=1)

    @property
    def counts(self) -> jax.Array:
        """How many of `tokens` are computed, [R]."""
        return jnp.where(self.open, 1 + self.count, 0)


class SpeculateProgram(BurstProgram):
    """Drafts, and a forward pass and samples over them, of one model. drafter: who drafts."""

    def __init__(
        self, model: LoadedModel, shapes: EngineShapes, layouts: Layouts, forward: ForwardPrograms, drafter: Drafter
    ):
        super().__init__(model, shapes, layouts, forward)
        self._drafter = drafter

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
    ) -> Burst:
        """A row ends with the tokens it may make, with a stop id, or where its logits are not finite."""
        view = self._layouts.burst(rows).views(packed)
        tables, slots = updated_tables(tables, view), view["slots"]
        rows_now = self._rows(state, slots, view["counts"])
        drafts = self._drafter.draft(weights, head, kv, tables, state, params, rows_now)
        last = unpack_newest(state.newest).last_token[slots]
        drafted = Drafted(last, rows_now.length, drafts.tokens, drafts.count, rows_now.open, drafts.predicted)
        kv = drafts.kv
        step = short_rows(drafted.tokens, drafted.length, drafted.counts, tuple(table[slots] for table in tables))
        hidden, kv, load = self._forward.layers(weights, kv, load, step)
        hidden = self._forward.normed(weights, hidden)
        tokens, logprobs = self._sample(head, state, params, hidden, slots, drafted)
        state, gained, accepted = self._keep(state, params, slots, drafted, tokens)
        count = jnp.where(drafted.open, drafted.count, 0)
        counts = jnp.stack([gained, count, accepted, drafted.predicted & (count > 0)], axis=1)
        return Burst(kv, tables, state, load, tokens, counts, logprobs)

    def _rows(self, state: SlotState, slots: jax.Array, most: jax.Array) -> Rows:
        """most: tokens that each row may get, [R]."""
        newest = Newest(*(field[slots] for field in unpack_newest(state.newest)))
        room = jnp.minimum(most, newest.remaining)
        is_open = (slots != self._shapes.scratch_slot) & (room > 0)
        return Rows(slots, jnp.where(is_open, newest.length, 0), jnp.where(is_open, room - 1, 0), is_open)

    def _sample(
        self,
        head: Arrays,
        state: SlotState,
        params: jax.Array,
        hidden: jax.Array,
        slots: jax.Array,
        drafted: Drafted,
    ) -> tuple[jax.Array, jax.Array]:
        """What each position of each row draws, int32 [R, K + 1], and packed log-probabilities, [R, K + 1, ...].
        hidden: [R (K + 1), d]."""
        rows, width = drafted.tokens.shape
        within = jnp.arange(width, dtype=jnp.int32)
        positions = drafted.length[:, None] + within + 1
        # A position comes after the drafts before it: of position j the first j.
        before = jnp.where(within[:-1] < within[:, None], drafted.drafts[:, None], -1)

        def draw(each: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            hidden, slots, positions, before = (array.reshape(-1, *array.shape[2:]) for array in each)
            own, logits = unpack_params(params[slots]), self._model.logits(head[: len(self._model.head)], hidden)
            sampled = sampled_tokens(self._model, logits, state.counts, slots, own, positions, before=before)
            return sampled.tokens, packed_logprobs(sampled.logprobs)

        at_once = max(_AT_ONCE // width, 1)
        every = (hidden.reshape(rows, width, -1), jnp.repeat(slots[:, None], width, axis=1), positions, before)
        if rows <= at_once:
            tokens, logprobs = draw(every)
            return tokens.reshape(rows, width), logprobs.reshape(rows, width, -1)
        # Rows that fill the last part are copies of the first ones.
        fill = jnp.arange(-(-rows // at_once) * at_once) % rows
        parts = tuple(array[fill].reshape(-1, at_once, *array.shape[1:]) for array in every)
        tokens, logprobs = jax.lax.map(draw, parts)
        return tokens.reshape(-1, width)[:rows], logprobs.reshape(len(fill), width, -1)[:rows]

    def _keep(
        self, state: SlotState, params: jax.Array, slots: jax.Array, drafted: Drafted, tokens: jax.Array
    ) -> tuple[SlotState, jax.Array, jax.Array]:
        """State with what each row has gained, how many tokens that is, and how many of them were drafts: int32 [R]."""
        within = jnp.arange(tokens.shape[1], dtype=jnp.int32)
        accepted = jnp.where(drafted.open, kept(drafted.drafts, drafted.count, tokens), 0)
        gained = jnp.where(drafted.open, 1 + accepted, 0)
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
        for step in range(tokens.shape[1]):  # one after another: a token that comes twice counts twice
            drawn = new[:, step] & (tokens[:, step] >= 0)
            counts = counted(self._model, counts, places[:, step], tokens[:, step], drawn, params)
        state = state._replace(newest=state.newest.at[own].set(newest.packed()), counts=counts)
        return state, gained, jnp.minimum(accepted, gained)


def kept(drafts: jax.Array, count: jax.Array, tokens: jax.Array) -> jax.Array:
    """How many drafts of each row equal what their positions draw, int32 [R]. drafts: [R, K], of which a row uses the
    first `count`. tokens: [R, K + 1]."""
    used = jnp.arange(drafts.shape[1]) < count[:, None]
    return jnp.sum(jnp.cumprod((drafts == tokens[:, :-1]) & used, axis=1), axis=1, dtype=jnp.int32)
