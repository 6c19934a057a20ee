"""The forward pass of one stage of a pipeline: its layers over a step's tokens."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer.engine.step.layouts import Layouts
from jaxinfer.runner.drafter import Drafter
from jaxinfer.runner.forward import Arrays, ForwardPrograms, Scored, drawn, updated_tables
from jaxinfer.runner.pipeline.known_slots import KnownSlots, updated
from jaxinfer.runner.pipeline.stage import Stage
from jaxinfer.runner.state import unpack_newest


class Passed(NamedTuple):
    """Input of a stage that is not the first. hidden: [T, d]. rows: int32, if rows draft, the first stage's facts about
    the step's rows: packed `Drafted` for a step that drafts, else each row's first position, [rows]."""

    hidden: jax.Array
    rows: jax.Array | None = None


class StageForwarded(NamedTuple):
    """Results of a stage's forward pass, as in `Forward`. known: a donated argument of the first stage, if rows draft;
    rows are then as in `Passed`."""

    kv: Arrays
    tables: Arrays
    load: jax.Array | None
    hidden: jax.Array
    scored: jax.Array | None = None
    known: KnownSlots | None = None
    rows: jax.Array | None = None


class StageForward:
    """Forward programs of one stage, as `ForwardPrograms` are of a model. drafter: of the first stage, if rows draft.

    Positions come with the packed step: rows gain a token by each step that draws for them, so the host knows them. The
    first stage reads newest tokens of slots from two arrays: `known`, int32 [slots, NEWEST.size], which admissions
    write, and `given`, int32 [slots], from the last stage after a step that has drawn all that this one reads. Every
    other stage is `given` hidden states.

    If rows draft, the host knows positions too late. `known` is then a `KnownSlots`, updated with `given`, which is as
    `handed_back` returns it; and the first stage passes on each row's first position.
    """

    def __init__(
        self,
        layouts: Layouts,
        stage: Stage,
        forward: ForwardPrograms,
        drafter: Drafter | None,
    ):
        self._forward = forward
        self._layouts = layouts
        self._stage = stage
        self._drafter = drafter

    def decode(
        self,
        rows: int,
        weights: Arrays,
        kv: Arrays,
        tables: Arrays,
        known: jax.Array | KnownSlots | None,
        given: jax.Array | Passed,
        load: jax.Array | None,
        packed: jax.Array,
    ) -> StageForwarded:
        """One token a row."""
        view = self._layouts.decode(rows).views(packed)
        tables, slots = updated_tables(tables, view, self._stage.groups), view["slots"]
        known, start, tokens = self._newest(known, given, view, jnp.ones(rows, bool))
        step = self._forward.single(tables, slots, start, tokens)
        hidden, kv, load, _ = self._forward.layers(weights, kv, load, step)
        return self._finish(weights, StageForwarded(kv, tables, load, hidden), drawn(slots, step), known, start)

    def mixed(
        self,
        tokens: int,
        weights: Arrays,
        kv: Arrays,
        tables: Arrays,
        known: jax.Array | KnownSlots | None,
        given: jax.Array | Passed,
        load: jax.Array | None,
        packed: jax.Array,
    ) -> StageForwarded:
        """Rows of any length."""
        view = self._layouts.mixed(tokens).views(packed)
        tables = updated_tables(tables, view, self._stage.groups)
        held = jnp.arange(len(view["slots"])) < view["num_decode"]
        known, start, own = self._newest(known, given, view, held)
        step = self._forward.unpack(view, tables, start, own if self._stage.is_first else jnp.zeros_like(view["slots"]))
        if isinstance(given, Passed):
            step = step._replace(tokens=given.hidden)
        hidden, kv, load, _ = self._forward.layers(weights, kv, load, step)
        if self._drafter is not None:
            kv = self._drafter.follow(weights, kv, step, None)
        scored = None
        if self._stage.is_last:
            hidden, scored = self._forward.scored(view, step, hidden)
        return self._finish(weights, StageForwarded(kv, tables, load, hidden), scored, known, start)

    def _newest(
        self,
        known: jax.Array | KnownSlots | None,
        given: jax.Array | Passed,
        view: dict[str, jax.Array],
        held: jax.Array,
    ) -> tuple[KnownSlots | None, jax.Array, jax.Array]:
        """Return known slots, each row's first position, int32 [rows], and its newest token; in later stages the hidden
        states that stand for tokens, as in `Step.tokens`. held: bool [rows], True where devices hold the newest
        token."""
        slots, start = view["slots"], view["starts"]
        if isinstance(given, Passed):
            return None, start if given.rows is None else given.rows, given.hidden
        if not isinstance(known, KnownSlots):
            assert known is not None
            return None, start, jnp.where(view["drawn"] > 0, given[slots], unpack_newest(known).last_token[slots])
        known = updated(known, given, slots, held & (view["drawn"] > 0))
        newest = unpack_newest(known.newest[slots])
        return known, jnp.where(held, newest.length, start), newest.last_token

    def _finish(
        self,
        weights: Arrays,
        out: StageForwarded,
        scored: Scored | None,
        known: KnownSlots | None,
        start: jax.Array,
    ) -> StageForwarded:
        """start: where rows begin."""
        if known is not None:
            return out._replace(known=known, rows=start)
        if not self._stage.is_last or scored is None:
            return out
        kept = {"kv": out.kv, "tables": out.tables, "load": out.load}
        return StageForwarded(*self._forward.finish(weights, out.hidden, scored, **kept))
