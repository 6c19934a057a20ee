"""The training loop: AdamW for a number of minutes."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from demo_training.model import Params, Trainee
from demo_training.tokens import Batch

_PEAK_RATE = 4e-3
_WARM_UP = 0.04


class Progress(NamedTuple):
    """seconds since the start, steps done, loss in nats a token."""

    seconds: float
    steps: int
    loss: float


def rate(done: float) -> float:
    """The learning rate when a share `done` of the time is over: up, then down to nothing."""
    return _PEAK_RATE * min(done / _WARM_UP, max(1 - done, 0.0) / (1 - _WARM_UP))


def train(
    trainee: Trainee, params: Params, data: Iterator[Batch], seconds: float, report: Callable[[Progress], None]
) -> Params:
    """Trains for `seconds`; `report` is called about every ten of them."""
    optimizer = _direction()
    state = optimizer.init(params)

    @jax.jit
    def step(params: Params, state: optax.OptState, rate: jax.Array, batch: Batch):
        loss, grads = jax.value_and_grad(trainee.loss)(params, batch.tokens, batch.weights)
        updates, state = optimizer.update(grads, state, params)
        return jax.tree.map(lambda p, u: p - rate * u, params, updates), state, loss

    start = said = time.monotonic()
    steps = 0
    while (now := time.monotonic()) - start < seconds:
        batch = next(data)
        params, state, loss = step(params, state, jnp.float32(rate((now - start) / seconds)), batch)
        steps += 1
        if now - said > 10 or steps == 1:
            report(Progress(now - start, steps, float(loss)))
            said = now
    return params


def _direction() -> optax.GradientTransformation:
    """AdamW without its learning rate, which follows the clock. Norms (vectors, stacked over layers) do not decay."""
    decay = optax.add_decayed_weights(0.02, mask=lambda params: jax.tree.map(lambda x: x.ndim > 2, params))
    return optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=0.98), decay)
