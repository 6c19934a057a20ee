"""Form A: one program a tick over all stages, which pass hidden states on by `ppermute`."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.pipeline_parts.form import Form, over_stages
from benchmarks.pipeline_parts.microbatches import Microbatch, empty, first_newest
from benchmarks.pipeline_parts.model import (
    MAX_ROWS,
    MAX_TOKENS,
    SCRATCH,
    Layer,
    Model,
    Rows,
    drawn,
    embedded,
    layer,
    layer_weights,
    no_draws,
    tables,
    updated,
)

_DONATED = (1, 2, 3, 4)


class OneProgram(Form):
    """Arrays have a leading axis of stages. Every stage has as many layers as the largest, and both tables.

    branches: a stage skips layers that it lacks, and computes a microbatch of at most MAX_ROWS tokens in that size when
    the bucket of the tick is larger. Without, it computes layers of zeros, and the bucket of the tick.
    """

    def __init__(self, model: Model, branches: bool = False):
        super().__init__(model)
        self._branches = branches
        self._mesh = Mesh(np.array(jax.devices()[: model.stages]), ("stage",))
        self._everywhere = NamedSharding(self._mesh, PartitionSpec())
        self._entered = deque([empty()] * (model.stages - 1), maxlen=model.stages)
        self._weights = self._stacked(self._stage_weights())
        per_stage = partial(self._repeated, model.stages)
        self._state = tuple(
            per_stage(np.zeros((SCRATCH + 1, model.width), np.float32)) for _ in range(max(model.layers))
        )
        self._newest = per_stage(first_newest())
        self._hidden = per_stage(np.zeros((MAX_TOKENS, model.width), np.float32))
        self._rows = per_stage(np.tile(np.array([SCRATCH, 0, 0], np.int32), (MAX_TOKENS, 1)))
        self._draws = per_stage(np.asarray(no_draws()))

    def submit(self, microbatch: Microbatch) -> None:
        self._entered.append(microbatch)
        bucket = max(one.bucket for one in self._entered)
        packed = np.full((bucket, 4), (SCRATCH, 0, 0, 0), np.int32)
        packed[: microbatch.bucket] = microbatch.packed
        placed = self.watch.time("upload", jax.device_put, packed, self._everywhere)
        program = self._program(bucket, placed)
        self._state, self._newest, self._hidden, self._rows, self._draws = self.watch.time(
            "program", program, *self._arrays(), placed
        )
        if (left := self._entered[0]).rows:
            self._unread.append((left, self._draws))

    def flush(self) -> None:
        for _ in range(self.model.stages - 1):
            self.submit(empty())

    def read(self) -> list[int]:
        microbatch, draws = self._unread.popleft()
        return np.asarray(draws.addressable_data(0))[0, : microbatch.rows, 1].tolist()

    def compile(self, bucket: int) -> None:
        self._program(bucket, jax.device_put(np.zeros((bucket, 4), np.int32), self._everywhere))

    def hold(self, function: Callable[[Any], Any]) -> None:
        program = self.programs.get("hold", over_stages(self._mesh, function), (0,), (self._newest,))
        self._newest = program(self._newest)

    def device_bytes(self) -> list[int]:
        total = sum(x.nbytes for x in jax.tree.leaves(self._arrays()))
        return [total // self.model.stages] * self.model.stages

    def _arrays(self) -> tuple[Any, ...]:
        return (self._weights, self._state, self._newest, self._hidden, self._rows, self._draws)

    def _stage_weights(self) -> list[Any]:
        """Return the weights of each stage: layers, and the tables, which are zeros in a stage that has none."""
        layers, (embed, head), stages = layer_weights(self.model), tables(self.model), []
        nothing = Layer(*map(np.zeros_like, layers[0]))
        for stage, count in enumerate(self.model.layers):
            own, layers = layers[:count], layers[count:]
            own = [*own, *[nothing] * (max(self.model.layers) - count)]
            both = (embed * (stage == 0), head * (stage == self.model.stages - 1))
            stages.append((own, both))
        return stages

    def _stacked(self, stages: list[Any]) -> Any:
        place = NamedSharding(self._mesh, PartitionSpec("stage"))
        return jax.tree.map(lambda *each: jax.device_put(np.stack(each), place), *stages)

    def _repeated(self, stages: int, x: np.ndarray) -> jax.Array:
        return self._stacked([x] * stages)

    def _program(self, bucket: int, packed: jax.Array) -> Any:
        by_stage, everywhere = PartitionSpec("stage"), PartitionSpec()
        given = (*self._arrays(), packed)
        tick = jax.shard_map(
            self._tick,
            mesh=self._mesh,
            in_specs=(*[by_stage] * len(self._arrays()), everywhere),
            out_specs=by_stage,
            check_vma=False,
        )
        return self.programs.get(bucket, tick, _DONATED, given)

    def _tick(self, weights: Any, state: Any, newest: Any, hidden: Any, rows: Any, draws: Any, packed: Any) -> Any:
        """One stage's part of a tick. Arguments but the last have a leading axis of one."""
        weights, state, newest, hidden, rows, draws = jax.tree.map(
            lambda x: x[0], (weights, state, newest, hidden, rows, draws)
        )
        (layers, (embed, head)), bucket, stages = weights, len(packed), self.model.stages
        stage, newest = lax.axis_index("stage"), updated(newest, draws)
        x, own = lax.cond(stage == 0, lambda: embedded(embed, newest, packed), lambda: (hidden[:bucket], rows[:bucket]))
        x, state = self._layers(stage, layers, state, x, Rows.unpacked(own))
        draws = lax.cond(stage == stages - 1, lambda: drawn(head, x, Rows.unpacked(own)), lambda: no_draws())
        following = [(at, at + 1) for at in range(stages - 1)]
        hidden = hidden.at[:bucket].set(lax.ppermute(x, "stage", following))
        rows = rows.at[:bucket].set(lax.ppermute(own, "stage", following))
        draws = lax.ppermute(draws, "stage", [(stages - 1, 0)])
        return jax.tree.map(lambda x: x[None], (state, newest, hidden, rows, draws))

    def _layers(self, stage: Any, layers: Any, state: Any, x: jax.Array, rows: Rows) -> Any:
        if not self._branches or len(x) <= MAX_ROWS:
            return self._layers_over(stage, layers, state, x, rows)

        def few() -> Any:
            first = Rows(*(part[:MAX_ROWS] for part in rows))
            short, after = self._layers_over(stage, layers, state, x[:MAX_ROWS], first)
            return jnp.pad(short, ((0, len(x) - MAX_ROWS), (0, 0))), after

        many = partial(self._layers_over, stage, layers, state, x, rows)
        return lax.cond(jnp.all(rows.slots[MAX_ROWS:] == SCRATCH), few, many)

    def _layers_over(self, stage: Any, layers: Any, state: Any, x: jax.Array, rows: Rows) -> Any:
        count, after = jnp.array(self.model.layers)[stage], []
        for number, (weights, kept) in enumerate(zip(layers, state, strict=True)):
            run = partial(layer, weights, kept, x, rows)
            if self._branches and number >= min(self.model.layers):
                x, kept = lax.cond(number < count, run, lambda x=x, kept=kept: (x, kept))
            else:
                x, kept = run()
            after.append(kept)
        return x, tuple(after)
