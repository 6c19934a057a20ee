"""Scales and zeros on their way into a TPU kernel, [..., N, G] each, for G groups of K."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxinfer_kernels.dequantise import CODES_FROM_E2M1, E2M1, widened_scales
from jaxinfer_kernels.matmul_blocks import LANES
from jaxinfer_kernels.stack import Weights


class Sides(NamedTuple):
    """Layout of scales, and of zeros if there are any, in HBM and in a kernel's blocks.

    NOTE: a kernel takes them with N on the lanes unless G fills those too. Most lie so by XLA's default layout, but not
    where experts or layers fill more of a tile than G does; lay them out so, or XLA copies them, for all experts, in
    every step.

    count: arrays. groups: G. lanes_hold_groups: they lie as [..., N, G]; else as [..., G, N]. times: factor of scales.
    """

    count: int
    groups: int
    lanes_hold_groups: bool
    times: int = 1

    def lay(self, arrays: Sequence[Weights]) -> list[Weights]:
        """The arrays [..., N, G] as the kernel takes them; where they lie so this moves nothing."""
        return [array if self.lanes_hold_groups else array.swapaxes(-1, -2) for array in arrays]

    def specs(self, columns: int, place: Callable[..., tuple[Any, ...]], lead: int) -> list[pl.BlockSpec]:
        """Blocks of all groups of `columns` outputs.

        place: from the grid's indices, those of the `lead` axes before N, and the block of columns.
        """

        def index(*grid: Any) -> tuple[Any, ...]:
            *before, column = place(*grid)
            return (*before, column, 0) if self.lanes_hold_groups else (*before, 0, column)

        block = (columns, self.groups) if self.lanes_hold_groups else (self.groups, columns)
        return [pl.BlockSpec((*[None] * lead, *block), index) for _ in range(self.count)]

    def scratch(self, columns: int, shape: tuple[int, int]) -> list[Any]:
        """Return the scratch memory that `load` fills. shape: chunks of K, and most groups of a chunk."""
        return [pltpu.VMEM((*shape, columns), jnp.float32) for _ in range(self.count)]

    def load(self, blocks: Sequence[Any], scratch: Sequence[Any]) -> None:
        """Blocks to [chunks, groups a chunk, columns] float32; of one group all chunks share, the first holds it.

        A chunk's groups need not begin on a tile of 8 sublanes, from where alone a loop could read them.
        """
        for block, wide in zip(blocks, scratch, strict=True):
            values = widened_scales(block[...])
            values = values * self.times if self.times > 1 else values
            values = values.T if self.lanes_hold_groups else values
            count = wide.shape[1]
            for chunk in range(self.groups // count):
                wide[chunk] = values[chunk * count : (chunk + 1) * count]
            if rest := self.groups % count:
                wide[wide.shape[0] - 1, :rest] = values[self.groups - rest :]


def first(refs: Sequence[Any]) -> tuple[Any, ...]:
    """The first number of each array of scalars: where in a stack a layer lies, nothing where there is no stack."""
    return tuple(ref[0] for ref in refs)


def sides_of(arrays: Sequence[Weights], weight: jnp.dtype) -> Sides:
    """`Sides` of arrays [..., N, G] of one shape; of none of them: a single group. weight: type of the codes."""
    groups = arrays[0].shape[-1] if arrays else 1
    return Sides(len(arrays), groups, groups % LANES == 0, CODES_FROM_E2M1 if weight == E2M1 else 1)
