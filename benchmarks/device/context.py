"""Context: what one part of the suite is given, and where it puts its result."""

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.device.forms import Form
from benchmarks.report import provenance, write_json

PEERS = ("torch", "transformers", "vllm", "jax-cuda13-plugin", "jax-cuda12-plugin", "libtpu")


@dataclass
class Context:
    """One run of one part.

    work: a folder for models and compiled programs, shared by the parts of a run. file: where the result goes; it is
    written whenever something new is known, so that a part that is ended early leaves what it had. began: when the
    process was started, seconds since the epoch. deadline: when it will be ended. command: the suite's own.
    hardware: the devices, where another process has asked for them; by default this one asks JAX. acceptance: how often
    drafts are kept whose predecessors are, where that is drawn.
    """

    name: str
    form: Form
    options: Mapping[str, Any]
    work: Path
    file: Path
    began: float
    deadline: float
    command: str
    hardware: dict[str, Any] | None = None
    acceptance: float = 0.8
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds_left(self) -> float:
        """Until this part is ended."""
        return self.deadline - time.time()

    @property
    def seconds_since_start(self) -> float:
        """Since the process was started, the interpreter's start included."""
        return time.time() - self.began

    def save(self, **values: Any) -> None:
        """Adds to the result and writes it whole: a part that is ended while it writes leaves what was there before."""
        self.result |= values
        here = {**provenance(self.command, PEERS), "hardware": self.hardware or hardware()}
        unfinished = self.file.with_suffix(".unfinished")
        write_json(str(unfinished), {"part": self.name, "form": self.form.name, **self.result}, here)
        unfinished.replace(self.file)


def hardware() -> dict[str, Any]:
    """The devices that JAX sees, where it was imported already.

    To ask takes a whole TPU, or most of a GPU's memory, from every other process as long as this one lives.
    """
    if jax := sys.modules.get("jax"):
        devices = jax.devices()
        return {"devices": [device.device_kind for device in devices], "platform": devices[0].platform}
    return {"devices": [], "platform": "cpu", "cores": os.cpu_count()}
