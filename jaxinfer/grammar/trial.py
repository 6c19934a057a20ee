"""Trial: whether a grammar can be compiled, found out where it can do no harm."""

import json
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxinfer.errors import WorkerLostError
from jaxinfer.text.limited_process import Exceeded, Late, LimitedProcess, Lost

_SECONDS = 8.0
"""For one grammar, and to read the tokenizer at the start."""


class Tried(NamedTuple):
    """error: why not, empty where it can. bytes: that it took."""

    error: str
    bytes: int = 0


class Trial:
    """A process that is started when it is first needed, and again where a grammar has ended it. For one thread at a
    time. settings: of `reading.read_tokenizers`."""

    def __init__(self, settings: Mapping[str, Any]):
        self._settings = json.dumps(dict(settings)).encode()
        self._process = LimitedProcess([sys.executable, "-P", "-m", "jaxinfer.grammar.trial_worker"], _SECONDS)

    def run(self, grammar: str) -> Tried:
        """Compiles a grammar. Raises WorkerLostError where no process can be started."""
        if not self._process.running:
            self._start()
        try:
            return Tried(**json.loads(self._process.ask(grammar.encode())))
        except Late:
            return Tried(f"it takes more than {_SECONDS:g} s to compile")
        except Exceeded as error:
            return Tried(f"it takes too much {error} to compile")
        except Lost:
            return Tried("it is nested too deeply, or too large, to compile")

    def _start(self) -> None:
        try:
            self._process.start()
            self._process.ask(self._settings)
        except (Exceeded, Late, Lost) as error:
            raise WorkerLostError(f"the process that tries grammars out {error}") from None

    def close(self) -> None:
        """Ends the process."""
        self._process.close()
