"""A runner that puts NaN wherever nobody may read."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.step.layouts import Layouts
from jaxinfer.engine.step.packed import PackedBurst, PackedForward
from jaxinfer.runner.draft_model import followed_groups
from jaxinfer.runner.jax_runner import BurstInFlight, DraftedStep, Forwarded, JaxRunner, StepInFlight
from jaxinfer.runner.pipeline.pipeline_runner import PipelineRunner, StagesDrafted, StagesForwarded, StagesInFlight
from tests.engine.ledger import free, unread


class PoisoningRunner(JaxRunner):
    """Puts NaN wherever nobody may read: before each step into blocks that are free once it is planned, and after it
    wherever no later step may read before it has written.

    The same device runs all histories of a model; `core` is the engine of the one that is under way, which may have
    been given fewer blocks than there are.
    """

    core: EngineCore

    def copy_blocks(self, packed: np.ndarray) -> None:
        self._poison(partial(self._free, copied=Layouts(self.shapes).copies.views(packed)["copies"]))
        super().copy_blocks(packed)

    def forward(self, step: PackedForward) -> Forwarded:
        self._poison(self._free)
        return super().forward(step)

    def sample(self, step: PackedForward, forwarded: Forwarded) -> StepInFlight:
        handle = super().sample(step, forwarded)
        self._poison(partial(unread, self.core))
        return handle

    def burst(self, step: PackedBurst) -> BurstInFlight:
        self._poison(self._free)
        handle = super().burst(step)
        self._poison(partial(unread, self.core))
        return handle

    def draft(self, step: PackedBurst) -> DraftedStep:
        self._poison(self._free)
        return super().draft(step)

    def verify(self, step: PackedBurst, drafted: DraftedStep, counts: np.ndarray) -> BurstInFlight:
        handle = super().verify(step, drafted, counts)
        self._poison(partial(unread, self.core))
        return handle

    def _poison(self, positions: Callable[[int], np.ndarray]) -> None:
        """positions: of a group, bool [blocks, block size]. The device runs this between steps."""
        groups = followed_groups(self.model)
        blocks, kept = self.kv[: len(groups)], self.kv[len(groups) :]
        poisoned = (
            _with_nan(kv, _padded(positions(group), kv.shape[2])) for group, kv in zip(groups, blocks, strict=True)
        )
        self.kv = (*poisoned, *kept)

    def _free(self, group: int, copied: np.ndarray | None = None) -> np.ndarray:
        return _free(self.core, self.shapes.block_size, group, copied)


class PoisoningPipeline(PipelineRunner):
    """The same over stages. Theirs may be on one device."""

    core: EngineCore

    def copy_blocks(self, packed: np.ndarray) -> None:
        self._poison(partial(self._free, copied=Layouts(self.shapes).copies.views(packed)["copies"]))
        super().copy_blocks(packed)

    def forward(self, step: PackedForward) -> StagesForwarded:
        self._poison(self._free)
        return super().forward(step)

    def sample(self, step: PackedForward, forwarded: StagesForwarded) -> StagesInFlight:
        handle = super().sample(step, forwarded)
        self._poison(partial(unread, self.core))
        return handle

    def burst(self, step: PackedBurst) -> StagesInFlight:
        self._poison(self._free)
        handle = super().burst(step)
        self._poison(partial(unread, self.core))
        return handle

    def draft(self, step: PackedBurst) -> StagesDrafted:
        self._poison(self._free)
        return super().draft(step)

    def verify(self, step: PackedBurst, drafted: StagesDrafted, counts: np.ndarray) -> StagesInFlight:
        handle = super().verify(step, drafted, counts)
        self._poison(partial(unread, self.core))
        return handle

    def _poison(self, positions: Callable[[int], np.ndarray]) -> None:
        for stage in self.stages:
            groups = [stage.stage.groups[group] for group in followed_groups(stage.model)]
            pairs = zip(groups, stage.kv, strict=True)
            stage.kv = tuple(_with_nan(kv, _padded(positions(group), kv.shape[2])) for group, kv in pairs)

    def _free(self, group: int, copied: np.ndarray | None = None) -> np.ndarray:
        return _free(self.core, self.shapes.block_size, group, copied)


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
