"""Trial: whether a grammar can be compiled, found out where it can do no harm."""

import json
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxinfer.errors import WorkerLostError
from jaxinfer.text.limited_process import Exceeded, Late, LimitedProcess, Lost

_SECONDS = 8.0
"""For one grammar."""
_PATIENCE = 8.0
"""To read the tokenizer at the start; and for a grammar, beside its own: the process ends what takes longer itself."""


class Tried(NamedTuple):
    """error: why not, empty where it can. bytes: that it took."""

    error: str
    bytes: int = 0


class Trial:
    """A process that is started when it is first needed. For one thread at a time. settings: of
    `reading.read_tokenizers`."""

    def __init__(self, settings: Mapping[str, Any]):
        self._settings = json.dumps({**settings, "seconds": _SECONDS}).encode()
        command = [sys.executable, "-P", "-m", "jaxinfer.grammar.trial_worker"]
        self._process = LimitedProcess(command, _SECONDS + _PATIENCE)

    def run(self, grammar: str) -> Tried:
        """Compiles a grammar. Raises WorkerLostError where no process can be started, or it is lost."""
        if not self._process.running:
            self._start()
        return Tried(**json.loads(self._ask(grammar.encode())))

    def _start(self) -> None:
        try:
            self._process.start()
        except Lost as error:
            raise _lost(error) from None
        self._ask(self._settings)

    def _ask(self, job: bytes) -> bytes:
        try:
            return self._process.ask(job)
        except (Exceeded, Late, Lost) as error:
            raise _lost(error) from None

    def close(self) -> None:
        """Ends the process."""
        self._process.close()


def _lost(error: Exception) -> WorkerLostError:
    return WorkerLostError(f"the process that tries grammars out {str(error) or 'does not answer'}")
