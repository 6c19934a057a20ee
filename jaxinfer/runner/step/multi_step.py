"""`multi_step`: several decode steps in one program, which ends when every row has ended."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer.engine.step.layouts import Layouts
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.state import SlotState, end_slots, stop_ids, unpack_newest
from jaxinfer.runner.step.data_shards import any_shard
from jaxinfer.runner.step.forward import Arrays, ForwardPrograms, updated_tables
from jaxinfer.runner.step.sample import draw


class RowTokens(NamedTuple):
    """Results of `multi_step` and `speculate`: kv, tables and state are donated arguments, load is as in `Forward`.

    tokens: int32 [rows, row_tokens], of which a row's first `counts` [rows] are valid; the last of them is -1 if logits
    were not finite. In results of `speculate` counts are [rows, 4]: tokens, drafts, drafts that were kept, and 1 if
    they come from a prediction; and logprobs are int32 [rows, row_tokens, LOGPROBS.size].
    """

    kv: Arrays
    tables: Arrays
    state: SlotState
    load: jax.Array | None
    tokens: jax.Array
    counts: jax.Array
    logprobs: jax.Array | None = None


class _Carry(NamedTuple):
    """open: bool [rows], those that go on. goes_on: whether any does, in any shard: a loop that devices leave at
    different steps would leave the others waiting for them."""

    step: jax.Array
    open: jax.Array
    goes_on: jax.Array
    kv: Arrays
    state: SlotState
    load: jax.Array | None
    tokens: jax.Array
    counts: jax.Array


class MultiTokenProgram:
    """A program of one model by which rows may get several tokens. forward: its forward passes."""

    def __init__(self, model: LoadedModel, shapes: EngineShapes, layouts: Layouts, forward: ForwardPrograms):
        self._model = model
        self._shapes = shapes
        self._layouts = layouts
        self._forward = forward


class MultiStepProgram(MultiTokenProgram):
    """Decode steps in a loop on the device: what `forward` and `sample` do, one after another."""

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
        """A row ends with the tokens it may make, with a stop id, or where its logits are not finite.

        One that a step before has ended already makes nothing: its `remaining` is 0.
        """
        view = self._layouts.multi_token(rows).views(packed)
        tables = updated_tables(tables, view, range(len(tables)))
        slots, most, scratch = view["slots"], view["counts"], self._shapes.scratch_slot

        def body(carry: _Carry) -> _Carry:
            own = jnp.where(carry.open, slots, scratch)
            newest = unpack_newest(carry.state.newest)
            start, tokens = newest.length[own], newest.last_token[own]
            run = self._forward.decode_rows(weights, carry.kv, tables, start, tokens, carry.load, own)
            hidden, kv, load, scored = run
            hidden = self._forward.normed(weights, hidden)
            state, sampled = draw(self._model, self._shapes, head, carry.state, params, hidden, scored)
            tokens = sampled.tokens
            ended = carry.open & ((tokens < 0) | jnp.any(stop_ids(params, own) == tokens[:, None], axis=1))
            state = end_slots(state, jnp.where(ended, slots, scratch))
            left = carry.open & ~ended & (carry.step + 1 < most)
            counts = carry.counts + carry.open
            drawn = carry.tokens.at[:, carry.step].set(tokens)
            return _Carry(carry.step + 1, left, self._any(left), kv, state, load, drawn, counts)

        open_rows = (slots != scratch) & (most > 0) & (unpack_newest(state.newest).remaining[slots] > 0)
        none = jnp.zeros((rows, self._shapes.decode_steps), jnp.int32)
        carry = _Carry(jnp.int32(0), open_rows, self._any(open_rows), kv, state, load, none, jnp.zeros(rows, jnp.int32))
        carry = jax.lax.while_loop(lambda carry: carry.goes_on, body, carry)
        return RowTokens(carry.kv, tables, carry.state, carry.load, carry.tokens, carry.counts)

    def _any(self, rows: jax.Array) -> jax.Array:
        return any_shard(self._model.mesh, jnp.any(rows))
