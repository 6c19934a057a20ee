"""Trial: the grammar of a constraint, made and compiled where it can do no harm."""

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxinfer.constraint import Constraint
from jaxinfer.errors import ParameterError, WorkerLostError
from jaxinfer.text.limited_process import Exceeded, Late, LimitedProcess, ProcessLost

log = logging.getLogger(__name__)

_SECONDS = 8.0
"""Processor time of one constraint, after which the process ends it."""
_PATIENCE = 22.0
"""Seconds to read the tokenizer at the start, and those by which a grammar may take longer on a busy machine."""


class Tried(NamedTuple):
    """error: why a constraint cannot be compiled; empty where it can. text: its grammar, where it can. bytes: that it
    took."""

    error: str
    text: str = ""
    bytes: int = 0


class Trial:
    """A process that is started when it is first needed. For one thread at a time. settings: of
    `reading.read_tokenizers`."""

    def __init__(self, settings: Mapping[str, Any]):
        self._settings = json.dumps({**settings, "seconds": _SECONDS}).encode()
        command = [sys.executable, "-P", "-m", "jaxinfer.grammar.trial_worker"]
        self._process = LimitedProcess(command, _SECONDS + _PATIENCE)

    def run(self, constraint: Constraint, *, forces: bool = True, calls: Sequence[Sequence[int]] = ()) -> Tried:
        """Make the grammar of a constraint, and compile it. forces: of `source.grammar_text`. calls: tokens that no
        grammar inside a structural tag may begin with. Raises ParameterError for what is no grammar, or may begin so,
        and WorkerLostError where no process can be started, or it is lost."""
        if not self._process.running:
            self._start()
        said = {name: getattr(constraint, name) for name in ("kind", "value", "whitespace", "param")}
        answer = json.loads(self._ask(json.dumps({"constraint": said, "forces": forces, "calls": calls}).encode()))
        if "unexpected" in answer:
            log.error("no grammar could be made of a %s: %s", constraint.kind, answer["unexpected"])
        if "refusal" in answer:
            raise ParameterError(*answer["refusal"])
        return Tried(**answer)

    def _start(self) -> None:
        try:
            self._process.start()
        except ProcessLost as error:
            raise _lost(error) from None
        self._ask(self._settings)

    def _ask(self, job: bytes) -> bytes:
        try:
            return self._process.ask(job)
        except (Exceeded, Late, ProcessLost) as error:
            raise _lost(error) from None

    def close(self) -> None:
        """Ends the process."""
        self._process.close()


def _lost(error: Exception) -> WorkerLostError:
    return WorkerLostError(f"the process that tries grammars out {str(error) or 'does not answer'}")
