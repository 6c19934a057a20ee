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
from jaxinfer.engine.step.packed import PackedStep
from jaxinfer.engine.step.plan import MULTI_TOKEN
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.step.draft_model import followed_groups
from tests.engine.ledger import free, unread


class PoisoningRunner(JaxRunner):
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

    def run(self, step: PackedStep) -> Any:
        self._poison(self._free)
        started = super().run(step)
        # Others end by `finish`.
        return self._poisoned(started) if step.kind in MULTI_TOKEN and len(self.stages) == 1 else started

    def begin(self, step: PackedStep) -> Any:
        self._poison(self._free)
        return super().begin(step)

    def finish(self, step: PackedStep, begun: Any, counts: np.ndarray | None) -> Any:
        return self._poisoned(super().finish(step, begun, counts))

    def _poisoned(self, handle: Any) -> Any:
        """After a step."""
        self._poison(partial(unread, self.core))
        return handle

    def _free(self, group: int, copied: np.ndarray | None = None) -> np.ndarray:
        return _free(self.core, self.shapes.block_size, group, copied)

    def _poison(self, positions: Callable[[int], np.ndarray]) -> None:
        """positions: of a group, bool [blocks, block size]. The device runs this between steps."""
        for stage in self.stages:
            groups = [stage.stage.groups[group] for group in followed_groups(stage.model)]
            blocks, kept = stage.kv[: len(groups)], stage.kv[len(groups) :]
            stage.kv = (*_poisoned_blocks(groups, blocks, positions), *kept)


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
