"""ExpertMoves: experts and their copies placed anew by the load that was measured, without another copy of the weights.

Weights move on the devices, some rows of a layer's experts at a time: each device collects those rows of all experts
and keeps those of its own slots.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.models.loaded import LoadedModel
from jaxinfer.models.weight import Leaf, Weight, held_on
from jaxinfer.parallel.expert_placement import place_by_load, slots_of
from jaxinfer.parallel.per_device import per_device
from jaxinfer.parallel.shards import live_axes
from jaxinfer.runner.experts.load import ExpertLoad

log = logging.getLogger(__name__)

Move = Callable[[jax.Array, np.ndarray], jax.Array]

_ROOM = 64 << 20
"""Bytes of a device that rows of all experts may take while they move."""
_WORTH = 0.95
"""The busiest device's tokens after moving, as a share of those before, above which nothing is moved."""


def expert_moves(model: LoadedModel, load: ExpertLoad, every: int) -> "ExpertMoves | None":
    """Return the expert moves of a model, or of a stage of one; None if no expert has copies. every: as in
    `ExpertMoves`."""
    copied = any(kind.experts is not None and kind.experts.redundant for kind in model.config.layers)
    return ExpertMoves(model, load, every) if copied else None


class ExpertMoves:
    """Moves of experts between the slots of one engine. every: steps between checks of the load; 0: none."""

    def __init__(self, model: LoadedModel, load: ExpertLoad, every: int):
        self._load, self._every, self._steps = load, every, 0
        self._layers = model.config.expert_layers
        self._weights = _weights(model)
        self._movers: dict[Leaf, Move] = {}

    def warm_up(self, model: LoadedModel) -> LoadedModel:
        """Compiles what moves weights, by moving none."""
        same = [np.arange(len(placement)) for placement in self._load.placements]
        return self._moved(model, same, self._load.placements)

    def after_step(self, model: LoadedModel) -> LoadedModel:
        """The model for the next step."""
        self._steps += 1
        if self._steps != self._every:
            return model
        self._steps = 0
        return self.place(model)

    def place(self, model: LoadedModel) -> LoadedModel:
        """The model with experts where the load since they were last placed wants them, in layers where it helps."""
        old, devices = self._load.placements, model.expert_devices
        loads = self._load.settle()
        new = [place_by_load(tokens, len(slots), devices) for tokens, slots in zip(loads, old, strict=True)]
        before, after = (self._load.of_devices(placements) for placements in (old, new))
        helps = after.max(axis=1) < _WORTH * before.max(axis=1)
        if not helps.any():
            return model
        new = [one if better else other for one, other, better in zip(new, old, helps, strict=True)]
        sources = [_sources(one, other) for one, other in zip(old, new, strict=True)]
        model = self._moved(model, sources, new)
        log.info(
            "experts of %d of %d layers placed anew; the busiest of %d devices had %.1f %% of their tokens, and would "
            "have had %.1f %%",
            *(helps.sum(), len(helps), devices, 100 * _busiest(before[helps]), 100 * _busiest(after[helps])),
        )
        self._load.place(new)
        return model

    def _moved(
        self, model: LoadedModel, sources: Sequence[np.ndarray], placements: Sequence[np.ndarray]
    ) -> LoadedModel:
        """sources: for each layer with experts the slot in which each slot's weights are now."""
        arrays: list[Any] = list(model.weights)
        for one, leaves in self._weights:
            at = [self._layers.index(layer) for layer in one.layers or ()]
            if one.holds_slots:
                tables = np.stack([slots_of(placements[layer], *one.shape[-2:]) for layer in at])
                (number,) = leaves
                arrays[number] = jax.device_put(tables, arrays[number].sharding)
                continue
            numbers = np.stack([sources[layer] for layer in at]).astype(np.int32)
            for number, leaf in leaves.items():
                move = self._movers.get(leaf) or _mover(model, leaf, arrays[number].format)
                self._movers[leaf] = move
                arrays[number] = move(arrays[number], numbers if leaf.stacked else numbers[0])
        return replace(model, weights=tuple(arrays))


def _busiest(tokens: np.ndarray) -> float:
    """tokens: [layers, devices]. The mean share of the device that has most."""
    return float(np.mean(tokens.max(axis=1) / tokens.sum(axis=1)))


def _weights(model: LoadedModel) -> list[tuple[Weight, dict[int, Leaf]]]:
    """Return the weights that placements apply to, with their leaves by number among the model's."""
    found, at = [], 0
    for one in model.plan.weights:
        leaves = one.leaves(held_on(model.mesh))
        if one.placement is not None:
            found.append((one, dict(enumerate(leaves, start=at))))
        at += len(leaves)
    return found


def _sources(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return, for each slot of a new placement, a slot that has its expert in the old one: the slot itself if the
    expert stays."""
    first = {expert: slot for slot, expert in reversed(list(enumerate(old.tolist())))}
    return np.array([slot if old[slot] == expert else first[expert] for slot, expert in enumerate(new.tolist())])


def _mover(model: LoadedModel, leaf: Leaf, place: Format) -> Move:
    """(array, sources [P], or [layers, P] of one that is stacked) to the array with each slot's from another."""
    over = live_axes(model.mesh, model.rules.split("expert"))
    sharding = place.sharding
    assert isinstance(sharding, NamedSharding)

    def local(array: jax.Array, sources: jax.Array) -> jax.Array:
        """Layer by layer, and of each as many rows at a time as there is room for."""
        stack, numbers = (array, sources) if leaf.stacked else (array[None], sources[None])
        layers, slots, rows, *_ = stack.shape
        mine = jax.lax.dynamic_slice_in_dim(numbers, jax.lax.axis_index(over) * slots, slots, axis=1)
        least = -(-stack.nbytes // layers * (numbers.shape[1] // slots) // _ROOM)
        each = next(rows // parts for parts in range(min(least, rows), rows + 1) if rows % parts == 0)
        size = (1, slots, each, *stack.shape[3:])

        def move(turn: jax.Array, stack: jax.Array) -> jax.Array:
            layer, part = turn // (rows // each), turn % (rows // each)
            place = (layer, 0, part * each, *[0] * (stack.ndim - 3))
            every = jax.lax.all_gather(jax.lax.dynamic_slice(stack, place, size)[0], over, axis=0, tiled=True)
            return jax.lax.dynamic_update_slice(stack, jnp.take(every, mine[layer], axis=0)[None], place)

        return jax.lax.fori_loop(0, layers * (rows // each), move, stack).reshape(array.shape)

    assert leaf.axes.index("expert") == leaf.stacked
    run = per_device(local, model.mesh, (sharding.spec, PartitionSpec()), sharding.spec)
    return jax.jit(run, out_shardings=place, donate_argnums=0)
