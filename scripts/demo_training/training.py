"""The training loop: Muon for matrices, Adam for the rest; steps that can be stopped and resumed exactly."""

from collections.abc import Callable, Iterator
from itertools import count, islice
from queue import Queue
from threading import Thread
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from optax.contrib import MuonDimensionNumbers
from tokenizers import Tokenizer

from demo_training.model import Params, Trainee
from demo_training.tokens import Batch, batches

BLOCK = 50
"""Steps whose data come from one seed; checkpoints lie between blocks, so that a resumed run sees the same data."""


class Schedule(NamedTuple):
    """A rate that rises, stays, and from step `decay_from` falls to nothing in `decay_steps`."""

    peak: float = 4e-3
    warm_up: int = 100
    decay_from: int | None = None
    decay_steps: int = 1

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        rising = min(1.0, (step + 1) / self.warm_up)
        if self.decay_from is None or step < self.decay_from:
            return self.peak * rising
        return self.peak * rising * max(0.0, 1 - (step - self.decay_from) / self.decay_steps)

    @property
    def last(self) -> int | None:
        """The step at which there is nothing left to do."""
        return None if self.decay_from is None else self.decay_from + self.decay_steps


class State(NamedTuple):
    """Content of a checkpoint. step: number of steps that are done."""

    params: Params
    optimizer: Any
    step: int


_OUTPUTS_FIRST = {
    "qkv": ((3,), (0, 1, 2)),
    "gate_up": ((3,), (0, 1, 2)),
    "out": ((1, 2, 3), (0,)),
    "down": ((1,), (0,)),
}
"""Axes of each matrix: its inputs', and its outputs'."""


def optimizer() -> optax.GradientTransformation:
    """Updates at a rate of 1. Muon's are scaled to the size of Adam's, which the embedding and the norms take."""
    muon = optax.contrib.muon(
        1.0, muon_weight_dimension_numbers=_dimensions, consistent_rms=0.2, weight_decay=0.01, adam_b2=0.98
    )
    return optax.chain(optax.clip_by_global_norm(1.0), muon)


def _dimensions(params: Params) -> Any:
    def of(path: tuple[Any, ...], variable: nnx.Variable) -> Any:
        axes = _OUTPUTS_FIRST.get(str(path[-1]))
        return variable.replace(MuonDimensionNumbers(*axes) if axes else None)

    return nnx.from_flat_state({path: of(path, variable) for path, variable in nnx.to_flat_state(params)})


Step = Callable[[Params, Any, jax.Array, Batch], tuple[Params, Any, jax.Array]]


def step_function(trainee: Trainee) -> Step:
    """A compiled step: parameters, optimizer's state, rate and batch to new ones and the loss."""
    transform = optimizer()

    def step(params: Params, state: Any, rate: jax.Array, batch: Batch) -> tuple[Params, Any, jax.Array]:
        loss, grads = jax.value_and_grad(trainee.loss)(params, batch)
        updates, state = transform.update(grads, state, params)
        return jax.tree.map(lambda p, u: p + rate * u, params, updates), state, loss

    return jax.jit(step, donate_argnums=(0, 1))


def first_state(trainee: Trainee, seed: int) -> State:
    """Before the first step."""
    params = trainee.init(seed)
    return State(params, optimizer().init(params), 0)


def data_from(tokenizer: Tokenizer, seed: int, step: int) -> Iterator[Batch]:
    """The batches from `step` on, which begins a block, made in a thread."""
    queue: Queue[Batch | Exception] = Queue(maxsize=2 * BLOCK)

    def fill() -> None:
        try:
            for block in count(step // BLOCK):
                for batch in islice(batches(tokenizer, f"{seed}/{block}"), BLOCK):
                    queue.put(batch)
        except Exception as error:
            queue.put(error)

    Thread(target=fill, daemon=True).start()
    while True:
        batch = queue.get()
        if isinstance(batch, Exception):
            raise batch
        yield batch


def train(
    step: Step, state: State, data: Iterator[Batch], schedule: Schedule, steps: int
) -> tuple[State, list[float], int]:
    """`steps` more steps: the new state, each one's loss, and the tokens seen."""
    params, moments, done = state
    losses, tokens = [], 0
    for _ in range(steps):
        batch = next(data)
        params, moments, loss = step(params, moments, jnp.float32(schedule.rate(done)), batch)
        losses.append(loss)
        tokens += int((batch.segments > 0).sum())
        done += 1
    return State(params, moments, done), [float(loss) for loss in losses], tokens
