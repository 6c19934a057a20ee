"""ExpertLoad: how many tokens each expert has got, counted on the device and read with the other statistics."""

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.engine.device.runner import ExpertTokens
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.mlp_kind import ExpertsKind
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.parallel.expert_placement import device_tokens, first_placement


def load_shape(model: LoadedModel) -> tuple[int, int] | None:
    """Return the shape of a model's counts, as `load_shape_of` does; None for a model without experts."""
    return load_shape_of(model.config)


def load_shape_of(config: DecoderConfig) -> tuple[int, int] | None:
    """[layers with experts, the most slots of experts that one of them has]; None for a model without."""
    found = _experts(config)
    return (len(found), max(experts.slots for experts in found)) if found else None


class StepLoad(NamedTuple):
    """The device's counts after a step, and how often those of all steps had been read when it was dispatched."""

    counts: jax.Array | None
    settled: int


class ExpertLoad:
    """Counts of one model: uint32 on the device, of slots, which wrap around; int64 here.

    dispatched: the device's counts after the last step that was dispatched; None for a model without experts.
    placements: the expert of each slot, of each layer with experts. placed: how often they were placed anew.
    """

    # NOTE: programs do not donate the counts: a thread that reads them would find its array gone. A copy in each step
    # costs less than starting one when somebody reads; 48 layers of 128 experts are 24 KiB.

    def __init__(self, model: LoadedModel, counts: bool = True):
        """counts: False where the model's devices are all of other processes: nothing is counted."""
        self._shape = load_shape(model) if counts else None
        self._sharding = NamedSharding(model.mesh, PartitionSpec())
        self._devices = model.expert_devices
        self._lock = threading.Lock()
        kinds = _experts(model.config)
        self.placements = [np.array(first_placement(experts.count, experts.redundant)) for experts in kinds]
        self.placed = self._settled = 0
        self._counts = [experts.count for experts in kinds]
        self._total = np.zeros((len(kinds), max(self._counts, default=0)), np.int64)
        self._placed_at = self._total.copy()
        self.reset()

    def reset(self) -> None:
        """The device counts from 0 again; what was read stays, and what was counted since is lost."""
        with self._lock:
            zeros = None if self._shape is None else np.zeros(self._shape, np.uint32)
            self._read = zeros
            self.dispatched: jax.Array | None = None if zeros is None else jax.device_put(zeros, self._sharding)
            self._collected = self.dispatched

    def dispatch(self, counts: jax.Array | None) -> StepLoad:
        """A step was dispatched, after which the device's counts are these."""
        self.dispatched = counts
        return StepLoad(counts, self._settled)

    def collect(self, step: StepLoad) -> None:
        """A step was collected. Those that were settled have been read."""
        with self._lock:
            if step.settled == self._settled:
                self._collected = step.counts

    def read(self) -> ExpertTokens | None:
        """Waits for no step."""
        if self._shape is None:
            return None
        with self._lock:
            self._add(self._collected)
            devices = self.of_devices(self.placements) if self._devices > 1 else None
            return ExpertTokens(self._total.copy(), devices, self.placed)

    def settle(self) -> list[np.ndarray]:
        """Tokens of each layer's experts since the placement that is now; waits for all steps."""
        with self._lock:
            self._add(self.dispatched)
            self._collected = self.dispatched
            self._settled += 1
            return self._since()

    def place(self, placements: Sequence[np.ndarray]) -> None:
        """Steps that are dispatched from now on are counted by other placements. All before were settled."""
        with self._lock:
            self.placements = list(placements)
            self._placed_at = self._total.copy()
            self.placed += 1

    def of_devices(self, placements: Sequence[np.ndarray]) -> np.ndarray:
        """Tokens since the placement that is now, by device as they would be with these: [layers, devices]."""
        each = zip(self._since(), placements, strict=True)
        return np.stack([device_tokens(load, placement, self._devices) for load, placement in each])

    def _since(self) -> list[np.ndarray]:
        new = self._total - self._placed_at
        return [load[:count] for load, count in zip(new, self._counts, strict=True)]

    def _add(self, counts: Any) -> None:
        now = np.asarray(counts)
        new = now - self._read  # modulo 2 ** 32
        for total, slots, placement in zip(self._total, new, self.placements, strict=True):
            np.add.at(total, placement, slots[: len(placement)])
        self._read = now


def _experts(config: DecoderConfig) -> list[ExpertsKind]:
    """Return the experts of each layer that has some."""
    return [layer.experts for layer in config.layers if layer.experts is not None]
