"""A runner that puts NaN wherever nobody may read."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.step.packed import PackedForward, PackedMultiStep
from jaxinfer.runner.jax_runner import JaxRunner
from tests.engine.ledger import unread


class PoisoningRunner(JaxRunner):
    """After each step puts NaN wherever no later step may read before it has written.

    The same device runs all histories of a model; `core` is the engine of the one that is under way.
    """

    core: EngineCore

    def sample(self, step: PackedForward, forwarded: Any) -> Any:
        handle = super().sample(step, forwarded)
        self._poison_blocks()
        return handle

    def decode_steps(self, step: PackedMultiStep) -> Any:
        handle = super().decode_steps(step)
        self._poison_blocks()
        return handle

    def _poison_blocks(self) -> None:
        """The device runs this after the step, and before the next one."""
        self.kv = tuple(_poison(kv, self._unread(group, kv.shape[2])) for group, kv in enumerate(self.kv))

    def _unread(self, group: int, blocks: int) -> np.ndarray:
        """The engine may have been given fewer than the device's `blocks`."""
        found = unread(self.core, group)
        return np.pad(found, ((0, blocks - len(found)), (0, 0)), constant_values=True)


@partial(jax.jit, donate_argnums=0)
def _poison(kv: jax.Array, unread: jax.Array) -> jax.Array:
    return jnp.where(unread[None, None, :, :, None, None], jnp.nan, kv)
