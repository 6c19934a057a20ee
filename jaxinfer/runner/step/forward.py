"""`forward`: the layers over one step's tokens. Writes KV, and gathers the positions that will be scored."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxinfer_kernels import RaggedRows, copy_pages

from jaxinfer.engine.step.layouts import Layouts
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.layers.attention import Heads
from jaxinfer.model_config.layer_kind import Scoring
from jaxinfer.models.decoder import Attend, Decoder, Place, Run
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.state import SlotState
from jaxinfer.runner.step.begun_rows import Begun, Given, begin_of
from jaxinfer.runner.step.draft_model import followed_groups
from jaxinfer.runner.step.features import FeatureStore
from jaxinfer.runner.step.group_attention import group_attention
from jaxinfer.runner.step.stage import Stage, whole_stage

Arrays = tuple[jax.Array, ...]


class Scored(NamedTuple):
    """Scored positions as `sample` needs to know them, int32 [max_scored] each.

    slots: scratch_slot where unused. positions: of the token to be drawn or scored. targets: -1 for a draw.
    draws: 1 where the drawn token becomes the slot's newest.
    """

    slots: jax.Array
    positions: jax.Array
    targets: jax.Array
    draws: jax.Array

    def packed(self) -> jax.Array:
        """int32 [max_scored, 4]: one array to hand from program to program."""
        return jnp.stack(self, axis=1)

    def padded(self, missing: int, scratch: int) -> "Scored":
        """Append `missing` unused positions. scratch: the scratch slot."""
        fill = (scratch, 0, -1, 0)  # in the order of the fields
        return Scored(*(jnp.pad(x, (0, missing), constant_values=f) for x, f in zip(self, fill, strict=True)))

    @classmethod
    def unpacked(cls, rows: jax.Array) -> "Scored":
        """rows: int32 [S, 4]."""
        return cls(*rows.T)


class Forward(NamedTuple):
    """Results of `forward`: kv and tables are its donated arguments, hidden is [max_scored, d], normed. In a pipeline
    stage that is not the last, hidden is [T, d], not normed, and `scored` is None.

    scored: int32 [max_scored, 4], a packed `Scored`. load: as `Decoder.run` has it; None for a model without experts.
    state, rows: as in `Begun`; state is donated then.
    """

    kv: Arrays
    tables: Arrays
    load: jax.Array | None
    hidden: jax.Array
    scored: jax.Array | None = None
    state: SlotState | None = None
    rows: jax.Array | None = None


class StepInput(NamedTuple):
    """One step unpacked: tokens and positions [T], rows as attention takes them (block tables a KV group).

    tokens: of a stage that is not the first, hidden states [T, d], as the one before gives them. real: [T] bool, tokens
    that are not padding. short_len: tokens of a short row, at most.
    """

    tokens: jax.Array
    positions: jax.Array
    tables: Arrays
    start: jax.Array
    offset: jax.Array
    count: jax.Array
    short_rows: int | jax.Array
    real: jax.Array
    short_len: int = 1


class MixedRows(NamedTuple):
    """Further arrays of a mixed step. slots: int32 [R]. next_tokens: int32 [T], the token after each; any value after
    the last known one. tapped: of `Run`."""

    slots: jax.Array
    next_tokens: jax.Array
    tapped: Arrays


Follow = Callable[[Arrays, Arrays, StepInput, MixedRows | None], Arrays]
"""follow(weights, kv, step, rows): KV blocks with what else is kept of a mixed step's tokens. rows: None where nothing
that drafts reads the model's hidden states."""


class ForwardPrograms:
    """The two families of forward of one model, or of a stage of one: decode by rows, mixed by tokens.

    follow: what reads the tokens of mixed steps after the model. features: where hidden states of other steps are kept
    for what drafts. stage: None: the model is whole. weights and kv of the methods: those of the model, after which may
    come those of others.
    """

    def __init__(
        self,
        model: LoadedModel,
        shapes: EngineShapes,
        layouts: Layouts,
        follow: Follow | None = None,
        features: FeatureStore | None = None,
        stage: Stage | None = None,
    ):
        self._model = model
        self._shapes = shapes
        self._layouts = layouts
        self._follow = follow
        self._features = features
        self._stage = stage or whole_stage(shapes)
        self._begin = begin_of(self._stage, shapes.drafting is not None)

    def decode(
        self,
        rows: int,
        weights: Arrays,
        kv: Arrays,
        tables: Arrays,
        state: SlotState | None,
        given: Given,
        load: jax.Array | None,
        packed: jax.Array,
    ) -> Forward:
        """One token a row, which with its position comes from slot state, or from another stage. state: what
        `ProgramTable.read_state` has."""
        view = self._layouts.decode(rows).views(packed)
        tables = updated_tables(tables, view, self._stage.groups)
        begun = self._begin(state, given, view)
        own = (begun.start, begun.tokens)
        hidden, kv, load, scored = self.decode_rows(weights, kv, tables, *own, load, view["slots"])
        return self._finish(weights, Forward(kv, tables, load, hidden), scored, begun)

    def decode_rows(
        self,
        weights: Arrays,
        kv: Arrays,
        tables: Arrays,
        start: jax.Array,
        tokens: jax.Array,
        load: jax.Array | None,
        slots: jax.Array,
    ) -> tuple[jax.Array, Arrays, jax.Array | None, Scored]:
        """The newest token of each of `slots`, int32 [rows]: hidden states [rows, d], kv, the load of experts, and
        what is drawn from them. start, tokens: as in `Begun`.

        Rows of the scratch slot compute nothing and draw nothing.
        """
        step = self.single(tables, slots, start, tokens)
        hidden, kv, load, tapped = self.layers(weights, kv, load, step)
        if self._features is not None:
            kv = self._features.keep(weights, kv, slots, step.positions, step.tokens[:, None], tapped)
        return hidden, kv, load, drawn(slots, step)

    def single(self, tables: Arrays, slots: jax.Array, start: jax.Array, tokens: jax.Array) -> StepInput:
        """A step of one token a row: its position, int32 [rows], and the token, as in `Begun`. tables: of all slots."""
        rows = len(slots)
        real = slots != self._shapes.scratch_slot
        positions = jnp.where(real, start, 0)
        return StepInput(
            tokens=tokens,
            positions=positions,
            tables=tuple(table[slots] for table in tables),
            start=positions,
            offset=jnp.arange(rows, dtype=jnp.int32),
            count=real.astype(jnp.int32),
            short_rows=rows,
            real=real,
        )

    def mixed(
        self,
        tokens: int,
        weights: Arrays,
        kv: Arrays,
        tables: Arrays,
        state: SlotState | None,
        given: Given,
        load: jax.Array | None,
        packed: jax.Array,
    ) -> Forward:
        """Rows of any length; the first `num_decode` have one token, as those of `decode`. state: with history, where
        what drafts reads the model's hidden states."""
        view = self._layouts.mixed(tokens).views(packed)
        tables = updated_tables(tables, view, self._stage.groups)
        begun = self._begin(state, given, view)
        step = self._unpack(view, tables, begun)
        hidden, kv, load, tapped = self.layers(weights, kv, load, step)
        if self._follow is not None:
            kv = self._follow(weights, kv, step, self._mixed_rows(view, step, state, tapped))
        scored = None
        if self._stage.is_last:
            hidden, scored = self._scored(view, step, hidden)
        return self._finish(weights, Forward(kv, tables, load, hidden), scored, begun)

    def _scored(self, view: dict[str, jax.Array], step: StepInput, hidden: jax.Array) -> tuple[jax.Array, Scored]:
        """Return the hidden states of a mixed step's scored positions, and their `Scored`."""
        slots = view["slots"][view["scored_row"]]
        used = (view["draws"] > 0) | (view["targets"] >= 0)
        at = view["scored_token"]
        return hidden[at], Scored(
            slots=jnp.where(used, slots, self._shapes.scratch_slot),
            positions=step.positions[at] + 1,
            targets=view["targets"],
            draws=view["draws"],
        )

    def _unpack(self, view: dict[str, jax.Array], tables: Arrays, begun: Begun) -> StepInput:
        """A mixed step. A row's newest token is its one token where the device holds that."""
        slots, count, start = view["slots"], view["counts"], begun.start
        held = jnp.arange(len(slots)) < view["num_decode"]
        ends = jnp.cumsum(count)
        offset = ends - count
        token = jnp.arange(len(view["tokens"]), dtype=jnp.int32)
        row = jnp.minimum(jnp.searchsorted(ends, token, side="right", method="compare_all"), len(slots) - 1)
        real = token < ends[-1]
        is_first = self._stage.is_first
        return StepInput(
            tokens=jnp.where(real & held[row], begun.tokens[row], view["tokens"]) if is_first else begun.tokens,
            positions=jnp.where(real, start[row] + token - offset[row], 0),
            tables=tuple(table[slots] for table in tables),
            start=start,
            offset=offset,
            count=count,
            short_rows=view["num_decode"][0],
            real=real,
        )

    def _mixed_rows(
        self, view: dict[str, jax.Array], step: StepInput, state: SlotState | None, tapped: Arrays
    ) -> MixedRows | None:
        if not self._model.taps:
            return None
        history = None if state is None else state.history
        assert history is not None
        slots, ends = view["slots"], step.offset + step.count
        token = jnp.arange(len(step.tokens), dtype=jnp.int32)
        row = jnp.minimum(jnp.searchsorted(ends, token, side="right", method="compare_all"), len(slots) - 1)
        after = jnp.minimum(step.positions + 1, history.shape[1] - 1)
        return MixedRows(slots, history[slots[row], after], tapped)

    def layers(self, weights: Arrays, kv: Arrays, load: jax.Array | None, step: StepInput) -> Run:
        """The layers over a step's tokens."""
        dispatch, groups = self._model.dispatch(step.real), len(self._model.backends)
        run = self._build(weights).run(
            step.tokens, step.positions, kv[:groups], load, self.attend(step), dispatch, self._model.taps
        )
        return run._replace(kv=(*run.kv, *kv[groups:]))

    def attend(self, step: StepInput) -> Attend:
        """Attention of a step's tokens over blocks of the model's groups."""
        attention = cache(partial(self._attention, step))

        def attend(heads: Heads, kv: Arrays, place: Place) -> tuple[jax.Array, Arrays]:
            group = place.group
            out, written = attention(group, place.scoring)(heads, kv[group], place.index)
            return out, (*kv[:group], written, *kv[group + 1 :])

        return attend

    def _build(self, weights: Arrays) -> Decoder:
        return self._model.build(weights[: len(self._model.weights)])

    def _attention(self, step: StepInput, group: int, scoring: Scoring) -> Callable[..., tuple[jax.Array, jax.Array]]:
        """Attention of one KV group. All of its layers share one trace, which takes the layer as an argument."""
        rows = RaggedRows(step.tables[group], step.start, step.offset, step.count)
        attend = group_attention(self._model, group, scoring, step.short_len)

        @jax.jit
        def attention(heads: Heads, kv: jax.Array, layer: jax.Array) -> tuple[jax.Array, jax.Array]:
            return attend(heads, kv, layer, rows, short_rows=step.short_rows)

        return attention

    def normed(self, weights: Arrays, hidden: jax.Array) -> jax.Array:
        """Hidden states as the head takes them."""
        return self._build(weights).final_norm(hidden)

    def _finish(self, weights: Arrays, out: Forward, scored: Scored | None, begun: Begun) -> Forward:
        """Norms and pads what the last stage has scored; adds what the first tells of its rows."""
        if not self._stage.is_last or scored is None:
            return out._replace(state=begun.state, rows=begun.rows)
        missing = self._shapes.max_scored - out.hidden.shape[0]
        hidden = jnp.pad(self.normed(weights, out.hidden), ((0, missing), (0, 0)))
        return out._replace(hidden=hidden, scored=scored.padded(missing, self._shapes.scratch_slot).packed())


def drawn(slots: jax.Array, step: StepInput) -> Scored:
    """Return the `Scored` of a step that draws one token a row."""
    return Scored(slots, step.positions + 1, jnp.full_like(slots, -1), step.real.astype(jnp.int32))


def short_rows(tokens: jax.Array, start: jax.Array, count: jax.Array, tables: Arrays) -> StepInput:
    """A step of short rows alone. tokens: int32 [R, W], of which the first `count` [R] of a row are computed; start:
    [R], the position of its first. tables: of the rows, a KV group each."""
    rows, width = tokens.shape
    within = jnp.arange(width, dtype=jnp.int32)
    real = within < count[:, None]
    return StepInput(
        tokens=tokens.reshape(-1),
        positions=jnp.where(real, start[:, None] + within, 0).reshape(-1),
        tables=tables,
        start=start,
        offset=jnp.arange(rows, dtype=jnp.int32) * width,
        count=count,
        short_rows=rows,
        real=real.reshape(-1),
        short_len=width,
    )


def updated_tables(tables: Arrays, view: dict[str, jax.Array], groups: Sequence[int]) -> Arrays:
    """Block tables with the step's new entries. groups: of which of the engine's KV groups they are."""
    updates = view["updates"]
    return tuple(
        table.at[updates[group, :, 0], updates[group, :, 1]].set(updates[group, :, 2])
        for group, table in zip(groups, tables, strict=True)
    )


def copied_blocks(model: LoadedModel, kv: Arrays, copies: Sequence[jax.Array]) -> Arrays:
    """`copies`: forked blocks of every group are copied. kv, donated: the draft model's among them, and what is kept of
    slots, which stays. copies: a group, int32 [C, 2], (source, destination).

    A program of its own, since few steps need it: in every step it would copy blocks of padding over all layers.
    """
    groups = followed_groups(model)
    layouts = [backend.layout for one in model.drafting for backend in one.backends]
    copied = tuple(
        copy_pages(x, copies[group][:, 0], copies[group][:, 1], layout)
        for x, layout, group in zip(kv[: len(groups)], layouts, groups, strict=True)
    )
    return (*copied, *kv[len(groups) :])
