"""A runner that puts NaN wherever nobody may read."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.device.calls import CopyBlocks, Write
from jaxinfer.engine.step.layouts import Layouts
from jaxinfer.engine.step.packed import PackedBurst, PackedForward
from jaxinfer.runner.draft_model import followed_groups
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.pipeline.pipeline_runner import PipelineRunner
from tests.engine.ledger import free, unread

_Runner: Any = object
"""What the class below is mixed into."""


class _Poisoning(_Runner):
    """A runner that puts NaN wherever nobody may read: before each step into blocks that are free once it is planned,
    and after it wherever no later step may read before it has written.

    The same device runs all histories of a model; `core` is the engine of the one that is under way, which may have
    been given fewer blocks than there are.
    """

    core: EngineCore

    def write(self, call: Write) -> None:
        if isinstance(call, CopyBlocks):
            self._poison(partial(self._free, copied=Layouts(self.shapes).copies.views(call.packed)["copies"]))
        super().write(call)

    def forward(self, step: PackedForward) -> Any:
        self._poison(self._free)
        return super().forward(step)

    def sample(self, step: PackedForward, begun: Any) -> Any:
        return self._poisoned(super().sample(step, begun))

    def burst(self, step: PackedBurst) -> Any:
        self._poison(self._free)
        return self._poisoned(super().burst(step))

    def draft(self, step: PackedBurst) -> Any:
        self._poison(self._free)
        return super().draft(step)

    def verify(self, step: PackedBurst, begun: Any, counts: np.ndarray) -> Any:
        return self._poisoned(super().verify(step, begun, counts))

    def _poisoned(self, handle: Any) -> Any:
        """After a step."""
        self._poison(partial(unread, self.core))
        return handle

    def _poison(self, positions: Callable[[int], np.ndarray]) -> None:
        """positions: of a group, bool [blocks, block size]. The device runs this between steps."""
        raise NotImplementedError

    def _free(self, group: int, copied: np.ndarray | None = None) -> np.ndarray:
        return _free(self.core, self.shapes.block_size, group, copied)


class PoisoningRunner(_Poisoning, JaxRunner):
    """Over one model, and what drafts for it."""

    def _poison(self, positions: Callable[[int], np.ndarray]) -> None:
        groups = followed_groups(self.model)
        blocks, kept = self.kv[: len(groups)], self.kv[len(groups) :]
        self.kv = (*_poisoned_blocks(groups, blocks, positions), *kept)


class PoisoningPipeline(_Poisoning, PipelineRunner):
    """Over stages, which may be on one device."""

    def _poison(self, positions: Callable[[int], np.ndarray]) -> None:
        for stage in self.stages:
            groups = [stage.stage.groups[group] for group in followed_groups(stage.model)]
            stage.kv = _poisoned_blocks(groups, stage.kv, positions)


def _poisoned_blocks(
    groups: Sequence[int], kv: Sequence[jax.Array], positions: Callable[[int], np.ndarray]
) -> tuple[jax.Array, ...]:
    """groups: of each of `kv`."""
    return tuple(_with_nan(x, _padded(positions(group), x.shape[2])) for group, x in zip(groups, kv, strict=True))


def _free(core: EngineCore, block_size: int, group: int, copied: np.ndarray | None) -> np.ndarray:
    """Free blocks, but for those that are about to be copied, [groups, copies, (source, destination)]."""
    found = free(core, group)
    if copied is not None:
        found[copied[group, :, 0]] = False
    return np.broadcast_to(found[:, None], (len(found), block_size))


def _padded(positions: np.ndarray, blocks: int) -> np.ndarray:
    """With NaN in all blocks that the engine was not given."""
    return np.pad(positions, ((0, blocks - len(positions)), (0, 0)), constant_values=True)


@partial(jax.jit, donate_argnums=0)
def _with_nan(kv: jax.Array, positions: jax.Array) -> jax.Array:
    return jnp.where(positions[None, None, :, :, None, None], jnp.nan, kv)
