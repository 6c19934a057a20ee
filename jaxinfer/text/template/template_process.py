"""TemplateProcess: the parent's end of the process that renders a chat template."""

import json
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jaxinfer.errors import ModelError, ParameterError, WorkerLostError
from jaxinfer.text.limited_process import Exceeded, Late, LimitedProcess, ProcessLost

_WORKER = Path(__file__).with_name("template_worker.py")


@dataclass(frozen=True)
class TemplateLimits:
    """Limits of one rendering."""

    cpu_seconds: float = 2.0
    """Processor time; the kernel counts whole seconds and rounds up."""
    wall_seconds: float = 10.0
    """Time from job to answer, writing both included."""
    memory_bytes: int = 512 * 2**20
    """Address space of the process."""
    max_chars: int = 4_000_000
    """Characters of the rendered text."""


class TemplateProcess:
    """Renders one template in a process that is started when it is first needed, and replaced after a failure."""

    def __init__(self, template: str, limits: TemplateLimits):
        self._template = template
        self._limits = limits
        self._lock = threading.Lock()
        self._process = LimitedProcess([sys.executable, "-P", str(_WORKER)], limits.wall_seconds)
        self._names: frozenset[str] | None = None
        self._fields: frozenset[str] = frozenset()
        self._literals: frozenset[str] = frozenset()

    def names(self) -> frozenset[str]:
        """The variables that the template reads; once known, at once.

        Raises ModelError where it is not a template, WorkerLostError where its process stalls or is killed.
        """
        if self._names is None:
            with self._lock:
                self._start()
        assert self._names is not None
        return self._names

    def fields(self) -> frozenset[str]:
        """Names that the template may look up in objects, such as messages. Raises as `names` does."""
        self.names()
        return self._fields

    def literals(self) -> frozenset[str]:
        """The strings that the template writes, compares or looks for. Raises as `names` does."""
        self.names()
        return self._literals

    def render(self, variables: Mapping[str, Any], now: datetime) -> str:
        """The rendered text.

        Raises ParameterError where the template refuses or exceeds its limits, WorkerLostError where its process stalls
        or is killed.
        """
        job = {"variables": variables, "now": now.isoformat(), "max_chars": self._limits.max_chars}
        with self._lock:
            self._start()
            try:
                answer = self._ask({**job, "cpu_seconds": self._limits.cpu_seconds})
            except Exceeded as error:
                raise ParameterError("messages", f"the chat template {self._described(error)}") from None
        if "error" in answer:
            raise ParameterError("messages", f"the chat template does not take them: {answer['error']}")
        return answer["text"]

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            self._process.close()

    def _start(self) -> None:
        if self._process.running:
            return
        first = {"template": self._template, "memory_bytes": self._limits.memory_bytes}
        try:
            self._process.start()
            answer = self._ask({**first, "cpu_seconds": self._limits.cpu_seconds})
        except ProcessLost as error:
            raise _lost(str(error)) from None
        except Exceeded as error:
            raise ModelError(f"the chat template {self._described(error)} while it was compiled") from None
        if "error" in answer:
            self._process.close()
            raise ModelError(f"the chat template is not valid: {answer['error']}")
        self._fields, self._literals = frozenset(answer["fields"]), frozenset(answer["literals"])
        self._names = frozenset(answer["names"])

    def _ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return json.loads(self._process.ask(json.dumps(job).encode()))
        except Late:
            # The kernel counts its processor time, and would have ended it: it did not run.
            raise _lost(f"did not answer within {self._limits.wall_seconds:g} s") from None
        except ProcessLost as error:
            raise _lost(str(error)) from None

    def _described(self, error: Exceeded) -> str:
        memory, seconds = self._limits.memory_bytes // 2**20, self._limits.cpu_seconds
        most = f"{memory} MiB of" if str(error) == "memory" else f"{seconds:g} s of"
        return f"took more than {most} {error}"


def _lost(reason: str) -> WorkerLostError:
    return WorkerLostError(f"the process that renders chat templates {reason}, and is replaced; try again")
