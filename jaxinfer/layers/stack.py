"""Layers in order: all of them unrolled, or a few unrolled and the rest as repeats under lax.scan."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxinfer_kernels.stack import StackLayer

Layout = Literal["unrolled", "stacked"]
Carry = TypeVar("Carry")
Block = TypeVar("Block", bound=nnx.Module)

Step = Callable[[Block, int, jax.Array | int, Carry], Carry]


class Repeats(NamedTuple):
    """Structure of layers as blocks: `prefix` of them once, then `period` of them `count` times over.

    Block i is layer i in repeat 0; a block of the period is layer i + period * r in repeat r.
    """

    prefix: int
    period: int = 0
    count: int = 0

    @property
    def blocks(self) -> int:
        """Blocks in all."""
        return self.prefix + self.period

    @property
    def layers(self) -> int:
        """Layers in all."""
        return self.prefix + self.period * self.count

    def layers_of(self, block: int) -> tuple[int, ...]:
        """The layers that a block is, in order."""
        return (block,) if block < self.prefix else tuple(range(block, self.layers, self.period))

    def place(self, layer: int) -> tuple[int, int]:
        """The block that a layer is, and in which repeat."""
        if layer < self.prefix:
            return layer, 0
        repeat, offset = divmod(layer - self.prefix, self.period)
        return self.prefix + offset, repeat

    def ordinal(self, members: Sequence[int], block: int, repeat: jax.Array | int) -> jax.Array | int | None:
        """Return the index among `members`, layers in order, of `block`'s layer in a repeat; None if it is not one of
        them.

        Members repeat as the layers do.
        """
        if block not in members:
            return None
        first = members.index(block)
        if block < self.prefix:
            return first
        return repeat * sum(self.prefix <= member < self.blocks for member in members) + first


def repeats_of(kinds: Sequence[object], layout: Layout) -> Repeats:
    """`unrolled`: all layers are the prefix. `stacked`: the fewest blocks that make up layers of these kinds."""
    total = len(kinds)
    if layout == "unrolled":
        return Repeats(total)
    number = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
    numbers = [number[kind] for kind in kinds]
    return min((_with_period(numbers, period) for period in range(1, total + 1)), key=lambda r: (r.blocks, r.prefix))


def _with_period(kinds: list[int], period: int) -> Repeats:
    """The longest end of `kinds` that repeats so, in whole repeats."""
    total, same = len(kinds), period
    while same < total and kinds[total - 1 - same] == kinds[total - 1 - same + period]:
        same += 1
    count = same // period
    return Repeats(total - count * period, period, count)


def layers(blocks: Sequence[Block], repeats: Repeats, step: Step, carry: Carry) -> Carry:
    """Runs `step(block, number of the block, repeat, carry)` for every layer in order.

    Leaves of blocks that repeat have a leading axis over the repeats, which is scanned; repeat is traced there.
    """
    for number, block in enumerate(blocks[: repeats.prefix]):
        carry = step(block, number, 0, carry)
    return _looped(blocks[repeats.prefix :], repeats, step, carry) if repeats.period else carry


def _looped(blocks: Sequence[Block], repeats: Repeats, step: Step, carry: Carry) -> Carry:
    graph, state = nnx.split(nnx.List(blocks))
    leaves, tree = jax.tree.flatten(state)
    whole = [_is_read_whole(parameter) for _, parameter in nnx.to_flat_state(state)]
    scanned = [None if read else _of_matrices(leaf) for leaf, read in zip(leaves, whole, strict=True)]

    def body(carry: Carry, inputs: tuple[list[jax.Array | None], jax.Array]) -> tuple[Carry, None]:
        parts, repeat = inputs
        own = [
            StackLayer(leaf, repeat) if part is None else part.reshape(leaf.shape[1:])
            for part, leaf in zip(parts, leaves, strict=True)
        ]
        for number, block in enumerate(nnx.merge(graph, jax.tree.unflatten(tree, own)), start=repeats.prefix):
            carry = step(block, number, repeat, carry)
        return carry, None

    return jax.lax.scan(body, carry, (scanned, jnp.arange(repeats.count, dtype=jnp.int32)))[0]


def layer_of(block: Block, repeat: jax.Array) -> Block:
    """A layer of a block that repeats, as a loop over the repeats has it. repeat: int32, a scalar that is traced."""
    graph, state = nnx.split(block)
    leaves, tree = jax.tree.flatten(state)
    whole = [_is_read_whole(parameter) for _, parameter in nnx.to_flat_state(state)]
    layers = [StackLayer(leaf, repeat) for leaf in leaves]
    own = [layer if read else layer.sliced() for layer, read in zip(layers, whole, strict=True)]
    return nnx.merge(graph, jax.tree.unflatten(tree, own))


def _is_read_whole(parameter: nnx.Variable) -> bool:
    """Return whether a kernel multiplies with a layer of the whole stack: experts, codes, scales and zeros, and on a
    CPU every matrix. Scanned, each layer would be copied."""
    of = parameter.get_metadata()
    if of.get("backend") == "native":
        return True
    return ("expert" in of["axes"] or "part" in of) and of.get("part", "codes") in ("codes", "scales", "zeros")


def _of_matrices(leaf: jax.Array) -> jax.Array:
    """[repeats, *out, K] to [repeats, N, K]: of such a stack XLA for a TPU reads a layer where it lies, of one with
    more axes it copies each (compiled for a v6e)."""
    return leaf.reshape(leaf.shape[0], -1, leaf.shape[-1]) if leaf.ndim > 3 else leaf
