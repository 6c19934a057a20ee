"""Eagle3Drafter: a chain of drafts by an EAGLE-3 head (arXiv:2503.01840), without its trees."""

import jax
import jax.numpy as jnp

from jaxinfer.engine.step.layouts import Layouts
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.layers.param import held
from jaxinfer.models.eagle3 import Eagle3Head, Eagle3Model
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.drafting.drafter import READ_AGAIN, DraftRows, Proposal, most_drafts, with_draw
from jaxinfer.runner.state import SlotState
from jaxinfer.runner.step.data_shards import most_of_shards
from jaxinfer.runner.step.draft_model import draft_shapes, followed_group, kept_tokens
from jaxinfer.runner.step.features import FEATURE_ARRAYS, FeatureStore
from jaxinfer.runner.step.forward import Arrays, ForwardPrograms, MixedRows, StepInput, short_rows


class Eagle3Drafter:
    """Draws with a head what the target would draw if its logits were the head's.

    Of position i the head reads the target's features and the token at i + 1, keeps its key and value of them in place
    i of the row's blocks, and drafts the token at i + 2. Beyond the newest token its own hidden states take the place
    of features, and what it keeps there is written anew once the target has computed these positions.
    """

    def __init__(self, target: LoadedModel, head: Eagle3Model, shapes: EngineShapes, layouts: Layouts):
        assert shapes.drafting is not None
        self._target = target
        self._head = head
        self._shapes = shapes
        self._tokens = shapes.drafting.tokens
        self._group = followed_group(target.config)
        self._kept = kept_tokens(target.config, shapes)
        self._forward = ForwardPrograms(head, draft_shapes(target, shapes), layouts)
        self.features = FeatureStore(target, head, shapes)

    def follow(self, weights: Arrays, kv: Arrays, step: StepInput, rows: MixedRows | None) -> Arrays:
        """Reads all tokens of prompts, the last of a row to be read again with the token that comes after it, and keeps
        features of that one."""
        assert rows is not None
        features = self.features.features(weights, rows.tapped)
        kv = self._layers(weights, kv, step._replace(tokens=rows.next_tokens), features)[1]
        within = jnp.maximum(step.count - 1, 0)
        last = jnp.minimum(step.offset + within, len(features) - 1)[:, None]
        return self.features.put(kv, rows.slots, step.start + within, step.tokens[last], features[last])

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
        built, head = self._built(weights), head[len(self._target.head) :]
        columns, none = self._target.config.table_shape[0], jnp.full((len(rows.slots), self._tokens), -1, jnp.int32)

        def draw(hidden: jax.Array, at: jax.Array | int, drafts: jax.Array) -> jax.Array:
            """drafts with one more, the one after `at` others. hidden: [R, d]."""
            logits = self._head.target_logits(head, built.final_norm(hidden), columns)
            return with_draw(self._target, logits, state, params, rows, at, drafts)

        def go_on(at: jax.Array, carry: tuple[Arrays, jax.Array, jax.Array]) -> tuple[Arrays, jax.Array, jax.Array]:
            kv, hidden, drafts = carry
            count = jnp.where(rows.room > at, 1, 0)
            step = short_rows(drafts[:, at - 1][:, None], rows.length + at - 1, count, own)
            hidden, kv = self._layers(weights, kv, step, hidden)
            return kv, hidden, draw(hidden, at, drafts)

        hidden, kv = self._read(weights, kv, own, state, rows)
        most = most_drafts(self._target, rows)
        kv, _, drafts = jax.lax.fori_loop(1, most, go_on, (kv, hidden, draw(hidden, 0, none)))
        return Proposal(kv, drafts, jnp.clip(rows.room, 0, self._tokens), jnp.zeros_like(rows.open))

    def _read(
        self, weights: Arrays, kv: Arrays, tables: Arrays, state: SlotState, rows: DraftRows
    ) -> tuple[jax.Array, Arrays]:
        """Return the head's hidden state at the last position before each row's newest token, [R, d], and kv.

        The head reads, with features, the positions of its last drafts and those it has missed since, as far back as
        their features are kept.
        """
        assert state.history is not None
        width = self._shapes.row_tokens
        kept = jnp.minimum(self.features.kept(kv, rows.slots, rows.length, state.history), self._kept - 1)
        count = jnp.where(rows.open, jnp.minimum(kept, rows.unread + width - READ_AGAIN), 0)
        passes = most_of_shards(self._target.mesh, jnp.max(-(-count // width)))

        def read(done: jax.Array, carry: tuple[jax.Array, Arrays]) -> tuple[jax.Array, Arrays]:
            left = (passes - 1 - done) * width
            now = jnp.clip(count - left, 0, width)
            return self._read_some(weights, carry[1], tables, state, rows, rows.length - left - now, now)

        hidden = jnp.zeros((len(rows.slots), self._head.config.hidden_size), self._head.dtype)
        return jax.lax.fori_loop(0, passes, read, (hidden, kv))

    def _read_some(
        self,
        weights: Arrays,
        kv: Arrays,
        tables: Arrays,
        state: SlotState,
        rows: DraftRows,
        start: jax.Array,
        count: jax.Array,
    ) -> tuple[jax.Array, Arrays]:
        """Return the head's hidden state at the last of `count` positions, at most K + 1, from `start` on, and kv.
        start, count: int32 [R]."""
        assert state.history is not None
        width = self._shapes.row_tokens
        features = self.features.at(kv, rows.slots, start, width)
        after = jnp.clip(start[:, None] + 1 + jnp.arange(width), 0, self._shapes.max_model_len - 1)
        step = short_rows(state.history[rows.slots[:, None], after], start, count, tables)
        hidden, kv = self._layers(weights, kv, step, features.reshape(-1, features.shape[-1]))
        return hidden[step.offset + jnp.maximum(count - 1, 0)], kv

    def _layers(self, weights: Arrays, kv: Arrays, step: StepInput, hidden: jax.Array) -> tuple[jax.Array, Arrays]:
        """The head over the tokens after a step's positions, and hidden states [T, d] of these: hidden states [T, d],
        and all of kv."""
        step = step._replace(tables=(step.tables[self._group],))
        built, place = self._built(weights), len(kv) - FEATURE_ARRAYS - 1
        table = held(self._target.build(weights[: len(self._target.weights)]).embed)
        embedded = built.embedded(table, step.tokens)
        attend = self._forward.attend(step)
        hidden, own = built(hidden, embedded, step.positions, kv[place : place + 1], attend)
        return hidden, (*kv[:place], *own, *kv[place + 1 :])

    def _built(self, weights: Arrays) -> Eagle3Head:
        return self._head.build_head(weights[len(self._target.weights) :])
