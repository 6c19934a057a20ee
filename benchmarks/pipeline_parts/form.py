"""Base of both forms of the pipeline: programs by bucket, their compile times, host time."""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from benchmarks.dispatch import Stopwatch
from benchmarks.pipeline_parts.microbatches import Microbatch
from benchmarks.pipeline_parts.model import Model


def over_stages(mesh: Mesh, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`function` on every device, of its stage's part of an array."""
    place = PartitionSpec("stage")
    return jax.shard_map(function, mesh=mesh, in_specs=place, out_specs=place, check_vma=False)


class Programs:
    """Compiled programs by key. seconds: what tracing and compiling took."""

    def __init__(self) -> None:
        self.seconds = {"trace": 0.0, "compile": 0.0}
        self._made: dict[Hashable, Any] = {}

    def __len__(self) -> int:
        return len(self._made)

    def get(self, key: Hashable, function: Callable[..., Any], donate: tuple[int, ...], given: Sequence[Any]) -> Any:
        """The program of a key, compiled for the shapes and places of `given` where it is new."""
        if key not in self._made:
            begin = time.perf_counter()
            lowered = jax.jit(function, donate_argnums=donate).lower(*given)
            traced = time.perf_counter()
            self._made[key] = lowered.compile()
            self.seconds["trace"] += traced - begin
            self.seconds["compile"] += time.perf_counter() - traced
        return self._made[key]


class Form(ABC):
    """A pipeline to which the host hands one microbatch after another, and from which it reads tokens later."""

    def __init__(self, model: Model):
        self.model = model
        self.programs = Programs()
        self.watch = Stopwatch()
        self._unread: deque[tuple[Microbatch, jax.Array]] = deque()

    @abstractmethod
    def submit(self, microbatch: Microbatch) -> None:
        """Dispatches all that is due when a microbatch enters: one tick of every stage."""

    @abstractmethod
    def flush(self) -> None:
        """Dispatches what still has to be, once no more microbatches enter."""

    @abstractmethod
    def compile(self, bucket: int) -> None:
        """Makes every program of a bucket."""

    @abstractmethod
    def hold(self, function: Callable[[Any], Any]) -> None:
        """Has every device run `function` of an array before all that is submitted later."""

    @abstractmethod
    def device_bytes(self) -> list[int]:
        """Return the bytes of weights and state on each device."""

    def read(self) -> list[int]:
        """Tokens of the oldest microbatch that has been dispatched to its end and was not read."""
        microbatch, draws = self._unread.popleft()
        return np.asarray(draws)[: microbatch.rows, 1].tolist()

    def run(self, microbatches: Sequence[Microbatch], ahead: int | None = None) -> list[list[int]]:
        """Tokens of each, from an empty pipeline to an empty one. Once `ahead` are unread, the host waits."""
        found = []
        for microbatch in microbatches:
            while len(self._unread) > (ahead or 2 * self.model.stages):
                found.append(self.read())
            self.submit(microbatch)
        self.flush()
        while self._unread:
            found.append(self.read())
        return found
