"""The layers(...) seam: layers unrolled, or stacked weights under lax.scan."""

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

Layout = Literal["unrolled", "stacked"]
Carry = TypeVar("Carry")
Block = TypeVar("Block", bound=nnx.Module)

Step = Callable[[Block, int, jax.Array | int, Carry], Carry]


def period(kinds: Sequence[object]) -> int:
    """The shortest length after which `kinds` repeats throughout; len(kinds) where it never does."""
    total = len(kinds)
    fits = (p for p in range(1, total + 1) if total % p == 0 and list(kinds) == list(kinds[:p]) * (total // p))
    return next(fits)


def layers(blocks: Sequence[Block], repeats: int | None, step: Step, carry: Carry) -> Carry:
    """Runs `step(block, place, repeat, carry)` for every layer in order.

    repeats None: `blocks` are the layers, repeat is 0. Otherwise the leaves of `blocks` have a leading axis of that
    length, and all blocks run once a repeat under lax.scan; place stays static, repeat is traced.
    """
    if repeats is None:
        for place, block in enumerate(blocks):
            carry = step(block, place, 0, carry)
        return carry
    graph, state = nnx.split(nnx.List(blocks))

    def body(carry: Carry, inputs: tuple[nnx.State, jax.Array]) -> tuple[Carry, None]:
        state, repeat = inputs
        for place, block in enumerate(nnx.merge(graph, state)):
            carry = step(block, place, repeat, carry)
        return carry, None

    return jax.lax.scan(body, carry, (state, jnp.arange(repeats, dtype=jnp.int32)))[0]
