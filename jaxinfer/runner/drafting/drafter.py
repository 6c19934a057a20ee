"""Drafters: what proposes the next tokens of rows, on the device, inside the step that checks them."""

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxinfer.engine.step.layouts import SLOT_PARAMS, Layouts
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.drafting.ngram import PredictionPlace, ngram_drafts
from jaxinfer.runner.experts.load import load_shape
from jaxinfer.runner.state import SlotState, unpack_params
from jaxinfer.runner.step.data_shards import most_of_shards
from jaxinfer.runner.step.draft_model import draft_shapes, followed_group, kept_tokens
from jaxinfer.runner.step.features import FeatureStore
from jaxinfer.runner.step.forward import Arrays, ForwardPrograms, MixedRows, StepInput, short_rows
from jaxinfer.runner.step.sample import sampled_tokens

READ_AGAIN = 2
"""Last tokens of a row that a draft model reads as it begins to draft: the newest it has never seen, and after drafts
that were all kept not the one before it either. What it has missed before them, in steps that did not draft, it catches
up with first."""
_CATCH_UP, _LONGEST, _PASSES = 512, 64, 8
"""Limits of catching up: tokens of all rows that are read at once, though no row reads fewer than `READ_AGAIN` or more
than `_LONGEST`; and passes. Earlier tokens stay unread, a hole, or one step would hold up all streams for long."""


class DraftRows(NamedTuple):
    """Rows that drafts are made for, [R] each. slots, length: int32, each row's slot, and the position of its newest
    token. unread: int32, of its tokens the last that a draft model may not have read. room: int32, drafts that it can
    take; open: bool, rows that get tokens."""

    slots: jax.Array
    length: jax.Array
    unread: jax.Array
    room: jax.Array
    open: jax.Array


class Proposal(NamedTuple):
    """kv: blocks of every group, written to. tokens: int32 [R, K]. count: how many of them each row has, int32 [R].
    predicted: bool [R], whether they come from the row's prediction."""

    kv: Arrays
    tokens: jax.Array
    count: jax.Array
    predicted: jax.Array


class Drafter(Protocol):
    """weights, head, kv: everywhere those of the model, and after them those of what drafts for it.

    Drafts never change what is drawn, so that they may come from anything: blocks with holes, stale or foreign."""

    @property
    def features(self) -> FeatureStore | None:
        """The model's hidden states that it has yet to read; None where it reads none."""
        ...

    def draft(
        self,
        weights: Arrays,
        head: Arrays,
        kv: Arrays,
        tables: Arrays,
        state: SlotState,
        params: jax.Array,
        rows: DraftRows,
    ) -> Proposal:
        """The next tokens of rows."""
        ...

    def follow(self, weights: Arrays, kv: Arrays, step: StepInput, rows: MixedRows | None) -> Arrays:
        """Blocks with what drafts will need of a mixed step's tokens."""
        ...


def with_draw(
    target: LoadedModel,
    logits: jax.Array,
    state: SlotState,
    params: jax.Array,
    rows: DraftRows,
    at: jax.Array | int,
    drafts: jax.Array,
) -> jax.Array:
    """drafts, int32 [R, K], with one more, the one after `at` others: drawn of `logits`, [R, vocabulary], with the
    uniform number, penalties and thresholds of its position."""
    asked, positions = unpack_params(params[rows.slots]), rows.length + at + 1
    drawn = sampled_tokens(target, logits, state.counts, rows.slots, asked, positions, before=drafts).tokens
    return drafts.at[:, at].set(jnp.maximum(drawn, 0))  # logits that are not finite draft anything


def most_drafts(target: LoadedModel, rows: DraftRows) -> jax.Array:
    """Return the most drafts that any row has room for, in any shard: int32. A step may have fewer drafts than there is
    room for in its program."""
    return most_of_shards(target.mesh, jnp.max(rows.room))


class NgramDrafter:
    """Looks for what followed a row's last tokens before."""

    features = None

    def __init__(self, shapes: EngineShapes):
        self._shapes = shapes

    def draft(
        self,
        weights: Arrays,
        head: Arrays,
        kv: Arrays,
        tables: Arrays,
        state: SlotState,
        params: jax.Array,
        rows: DraftRows,
    ) -> Proposal:
        assert self._shapes.drafting is not None
        assert state.history is not None
        own = SLOT_PARAMS.views(params[rows.slots])
        prediction = PredictionPlace(own["predicted"], own["prompt_len"])
        found = ngram_drafts(state.history[rows.slots], rows.length, prediction, self._shapes.drafting)
        return Proposal(kv, found.tokens, jnp.clip(rows.room, 0, found.count), found.predicted)

    def follow(self, weights: Arrays, kv: Arrays, step: StepInput, rows: MixedRows | None) -> Arrays:
        """The rows' history is what it needs."""
        return kv


class ModelDrafter:
    """Draws with a smaller model what the target would draw if its logits were the smaller one's.

    Each draft is drawn with the uniform number, penalties and thresholds of its position. target: has a `draft`.
    """

    features = None

    def __init__(self, target: LoadedModel, shapes: EngineShapes, layouts: Layouts):
        assert target.draft is not None
        assert shapes.drafting is not None
        self._target = target
        self._draft = target.draft
        self._shapes = shapes
        self._tokens = shapes.drafting.tokens
        self._group = followed_group(target.config)
        self._kept = kept_tokens(target.config, shapes)
        self._forward = ForwardPrograms(target.draft, draft_shapes(target, shapes), layouts)

    def follow(self, weights: Arrays, kv: Arrays, step: StepInput, rows: MixedRows | None) -> Arrays:
        """The draft model's keys and values of the tokens."""
        return self._layers(weights, kv, step)[1]

    def draft(
        self,
        weights: Arrays,
        head: Arrays,
        kv: Arrays,
        tables: Arrays,
        state: SlotState,
        params: jax.Array,
        rows: DraftRows,
    ) -> Proposal:
        own = tuple(table[rows.slots] for table in tables)
        head, none = head[len(self._target.head) :], jnp.full((len(rows.slots), self._tokens), -1, jnp.int32)

        def draw(hidden: jax.Array, at: jax.Array | int, drafts: jax.Array) -> jax.Array:
            """drafts with one more, the one after `at` others. hidden: [R, d]."""
            hidden = self._forward.normed(self._own(weights), hidden)
            logits = self._columns(self._draft.logits(head, hidden))
            return with_draw(self._target, logits, state, params, rows, at, drafts)

        def go_on(at: jax.Array, carry: tuple[Arrays, jax.Array]) -> tuple[Arrays, jax.Array]:
            kv, drafts = carry
            count = jnp.where(rows.room > at, 1, 0)
            hidden, kv = self._layers(weights, kv, short_rows(drafts[:, at - 1][:, None], rows.length + at, count, own))
            return kv, draw(hidden, at, drafts)

        kv = self._caught_up(weights, kv, own, state, rows)
        first, last = self._first(state, rows, own)
        hidden, kv = self._layers(weights, kv, first)
        kv, drafts = jax.lax.fori_loop(1, most_drafts(self._target, rows), go_on, (kv, draw(hidden[last], 0, none)))
        count = jnp.clip(rows.room, 0, self._tokens)
        return Proposal(kv, drafts, count, jnp.zeros_like(rows.open))

    def _caught_up(self, weights: Arrays, kv: Arrays, tables: Arrays, state: SlotState, rows: DraftRows) -> Arrays:
        """kv with what rows have not read of the tokens before the last `READ_AGAIN`."""
        width = max(READ_AGAIN, min(_LONGEST, _CATCH_UP // len(rows.slots)))
        most = min(_PASSES * width, self._kept - READ_AGAIN)
        missed = jnp.where(rows.room > 0, jnp.minimum(rows.unread - READ_AGAIN, most), 0)
        passes = most_of_shards(self._target.mesh, jnp.max(-(-missed // width)))

        def read(done: jax.Array, kv: Arrays) -> Arrays:
            left = jnp.maximum(missed - done * width, 0)
            start = rows.length + 1 - READ_AGAIN - left
            step = self._known(state, rows, start, jnp.minimum(left, width), width, tables)
            return self._layers(weights, kv, step)[1]

        return jax.lax.fori_loop(0, passes, read, kv)

    def _first(self, state: SlotState, rows: DraftRows, tables: Arrays) -> tuple[StepInput, jax.Array]:
        """Each row's last tokens as a step, and where of it the newest of each row are, int32 [R]."""
        count = jnp.where(rows.room > 0, jnp.minimum(rows.length + 1, READ_AGAIN), 0)
        start = jnp.maximum(rows.length + 1 - READ_AGAIN, 0)
        step = self._known(state, rows, start, count, READ_AGAIN, tables)
        return step, step.offset + jnp.maximum(count - 1, 0)

    def _known(
        self, state: SlotState, rows: DraftRows, start: jax.Array, count: jax.Array, width: int, tables: Arrays
    ) -> StepInput:
        """A step of `count` tokens, at most `width`, that each row has from `start` on: int32 [R] both."""
        assert state.history is not None
        places = jnp.clip(start[:, None] + jnp.arange(width), 0, self._shapes.max_model_len - 1)
        return short_rows(state.history[rows.slots[:, None], places], start, count, tables)

    def _layers(self, weights: Arrays, kv: Arrays, step: StepInput) -> tuple[jax.Array, Arrays]:
        """The draft model over a step's tokens: hidden states [T, d], and the blocks of all groups. Experts' tokens are
        not counted."""
        groups = len(self._draft.config.kv_groups)
        shape = load_shape(self._draft)
        load = None if shape is None else jnp.zeros(shape, jnp.uint32)
        step = step._replace(tables=(step.tables[self._group],) * groups)
        run = self._forward.layers(self._own(weights), kv[-groups:], load, step)
        return run.hidden, (*kv[:-groups], *run.kv)

    def _own(self, weights: Arrays) -> Arrays:
        return weights[len(self._target.weights) :]

    def _columns(self, logits: jax.Array) -> jax.Array:
        """Logits of the draft model as the target's head has them, whose table may have more rows or fewer."""
        columns = self._target.config.table_shape[0]
        more = max(columns - logits.shape[1], 0)
        return jnp.pad(logits, ((0, 0), (0, more)), constant_values=-jnp.inf)[:, :columns]
