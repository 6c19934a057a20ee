"""Form B: programs of each stage on its own device; `device_put` hands hidden states on."""

from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.pipeline_parts.form import Form, over_stages
from benchmarks.pipeline_parts.microbatches import Microbatch, first_newest
from benchmarks.pipeline_parts.model import (
    SCRATCH,
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


class StagePrograms(Form):
    """A microbatch is handed to all stages at once; each begins when what it reads is there.

    What is drawn is read by the first stage as many microbatches later as there are stages.
    """

    def __init__(self, model: Model):
        super().__init__(model)
        devices = np.array(jax.devices()[: model.stages])
        self._mesh = Mesh(devices, ("stage",))
        self._places = [NamedSharding(Mesh(own, ("tensor",)), PartitionSpec()) for own in devices.reshape(-1, 1)]
        layers, (embed, head), self._weights, self._state = layer_weights(model), tables(model), [], []
        for count, place in zip(model.layers, self._places, strict=True):
            own, layers = layers[:count], layers[count:]
            self._weights.append(jax.device_put(own, place))
            zeros = [np.zeros((SCRATCH + 1, model.width), np.float32) for _ in own]
            self._state.append(jax.device_put(zeros, place))
        self._embed, self._head = jax.device_put(embed, self._places[0]), jax.device_put(head, self._places[-1])
        self._newest = jax.device_put(first_newest(), self._places[0])
        nothing = jax.device_put(np.asarray(no_draws()), self._places[0])
        self._drawn = deque([nothing] * model.stages)

    def submit(self, microbatch: Microbatch) -> None:
        packed = self.watch.time("upload", jax.device_put, microbatch.packed, self._places[0])
        hidden, rows = None, packed
        for stage, place in enumerate(self._places):
            if stage > 0:
                hidden, rows = self.watch.time("hand-over", jax.device_put, (hidden, rows), place)
            hidden, rows = self._run(stage, hidden, rows)
        draws = self.watch.time("tokens back", jax.device_put, rows, self._places[0])
        self._drawn.append(draws)
        self._unread.append((microbatch, draws))

    def flush(self) -> None:
        """Nothing is left to dispatch."""

    def compile(self, bucket: int) -> None:
        for stage, place in enumerate(self._places):
            hidden = jax.device_put(np.zeros((bucket, self.model.width), np.float32), place)
            rows = jax.device_put(np.zeros((bucket, 3 if stage else 4), np.int32), place)
            self._program(stage, hidden, rows)

    def hold(self, function: Callable[[Any], Any]) -> None:
        # One program over all: on one device, programs with callbacks are run by the thread that calls them.
        own = [state[0] for state in self._state]
        shape, both = own[0].shape, NamedSharding(self._mesh, PartitionSpec("stage"))
        joined = jax.make_array_from_single_device_arrays((len(own) * shape[0], *shape[1:]), both, own)
        held = self.programs.get("hold", over_stages(self._mesh, function), (0,), (joined,))(joined)
        for stage, place in enumerate(self._places):
            part = held.addressable_data(stage)
            self._state[stage][0] = jax.make_array_from_single_device_arrays(shape, place, [part])

    def device_bytes(self) -> list[int]:
        arrays = list(zip(self._weights, self._state, strict=True))
        both = [(self._embed, self._newest), *[()] * (self.model.stages - 2), self._head]
        return [sum(x.nbytes for x in jax.tree.leaves(each)) for each in zip(arrays, both, strict=True)]

    def _run(self, stage: int, hidden: Any, rows: jax.Array) -> tuple[Any, jax.Array]:
        """Run a stage and return the inputs of the next one. The last stage's rows are the tokens that it has drawn."""
        program = self._program(stage, hidden, rows)
        given = self._given(stage, hidden, rows)
        if stage == 0:
            self._drawn.popleft()
            self._state[0], self._newest, hidden, rows = self.watch.time("program", program, *given)
        else:
            self._state[stage], hidden, rows = self.watch.time("program", program, *given)
        return hidden, rows

    def _given(self, stage: int, hidden: Any, rows: jax.Array) -> tuple[Any, ...]:
        if stage == 0:
            return self._weights[0], self._state[0], self._newest, self._embed, self._drawn[0], rows
        if stage == self.model.stages - 1:
            return self._weights[stage], self._state[stage], self._head, hidden, rows
        return self._weights[stage], self._state[stage], hidden, rows

    def _program(self, stage: int, hidden: Any, rows: jax.Array) -> Any:
        key = (stage, len(rows))
        given = self._given(stage, hidden, rows)
        if stage == 0:
            return self.programs.get(key, self._first, (1, 2), given)
        return self.programs.get(key, self._last if stage == self.model.stages - 1 else self._middle, (1,), given)

    def _first(self, weights: Any, state: Any, newest: Any, embed: Any, draws: Any, packed: Any) -> Any:
        newest = updated(newest, draws)
        x, rows = embedded(embed, newest, packed)
        state, x, rows = self._middle(weights, state, x, rows)
        return state, newest, x, rows

    def _middle(self, weights: Any, state: Any, x: Any, rows: Any) -> Any:
        after = []
        for one, kept in zip(weights, state, strict=True):
            x, kept = layer(one, kept, x, Rows.unpacked(rows))
            after.append(kept)
        return after, x, rows

    def _last(self, weights: Any, state: Any, head: Any, x: Any, rows: Any) -> Any:
        state, x, rows = self._middle(weights, state, x, rows)
        return state, None, drawn(head, x, Rows.unpacked(rows))
