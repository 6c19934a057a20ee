"""ExpertLoad: how many tokens each expert has got, counted on the device and read with the other statistics."""

import threading

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.models.loaded import LoadedModel


def load_shape(model: LoadedModel) -> tuple[int, int] | None:
    """[layers with experts, the most experts that one of them has]; None for a model without."""
    found = [layer.mlp.experts.count for layer in model.config.layers if layer.mlp.experts is not None]
    return (len(found), max(found)) if found else None


class ExpertLoad:
    """Counts of one model: uint32 on the device, which wrap around, int64 here.

    dispatched: the device's counts after the last step that was dispatched. collected: after the last that was
    collected. Both are None for a model without experts.
    """

    # NOTE: programs do not donate the counts: a thread that reads them would find its array gone. A copy in each step
    # costs less than starting one when somebody reads; 48 layers of 128 experts are 24 KiB.

    def __init__(self, model: LoadedModel):
        self._shape = load_shape(model)
        self._sharding = NamedSharding(model.mesh, PartitionSpec())
        self._lock = threading.Lock()
        self._total = None if self._shape is None else np.zeros(self._shape, np.int64)
        self.reset()

    def reset(self) -> None:
        """The device counts from 0 again; what was read stays, and what was counted since is lost."""
        with self._lock:
            zeros = None if self._shape is None else np.zeros(self._shape, np.uint32)
            self._read = zeros
            self.dispatched: jax.Array | None = None if zeros is None else jax.device_put(zeros, self._sharding)
            self.collected = self.dispatched

    def read(self) -> np.ndarray | None:
        """Tokens by layer and expert, int64; waits for no step."""
        if self._total is None:
            return None
        with self._lock:
            now = np.asarray(self.collected)
            self._total += now - self._read  # modulo 2 ** 32
            self._read = now
            return self._total.copy()
