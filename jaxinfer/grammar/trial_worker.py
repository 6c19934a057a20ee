"""Makes grammars of constraints, and tries them out, in processes of its own: what takes too much, or makes llguidance
crash, ends such a process alone.

Reads and writes frames of text/limited_process.py: first `{"tokenizer", "vocab_size", "eos_ids", "seconds"}`, which is
answered with `{}`; then `{"constraint", "forces", "calls"}`, each answered with `{"error", "text", "bytes"}`: what it
says, empty where it compiles and goes on after a token, the grammar, and what it took. What is no grammar is answered
with `{"refusal"}`, the arguments of a ParameterError, beside `unexpected`, a traceback, where that is a defect.

A tokenizer takes a second of a processor to read. So this process reads it once, and a copy of the process answers
until a grammar ends it; the next copy takes milliseconds. Else grammars that crash would cost others more than any that
compile.
"""

import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask_par

from jaxinfer.constraint import Constraint
from jaxinfer.errors import ParameterError
from jaxinfer.grammar.reading import LIMITS, read_tokenizers, special_ids
from jaxinfer.grammar.source import grammar_text, parts_of, unforced
from jaxinfer.grammar.tags import SpecialIds
from jaxinfer.heap import allocated
from jaxinfer.text.limited_process import read_frame, write_frame

_MEMORY = 1 << 30
"""Bytes of one grammar, beside what the process has when it begins."""
_MOST_CHARS = 8 << 20
"""Characters of one grammar: the engine's process gets it."""
_NICENESS = 10
"""Whoever streams goes first."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class _Known(NamedTuple):
    """Tokenizer data that the copies of the process share."""

    tokenizer: LLTokenizer
    special_ids: SpecialIds


def main() -> None:
    """Answers until its input ends."""
    os.nice(_NICENESS)
    first = read_frame(sys.stdin.buffer)
    if first is None:
        return
    settings = json.loads(first)
    seconds = settings.pop("seconds")
    read = read_tokenizers(**settings)
    known = _Known(read.guided, special_ids(read))
    write_frame(sys.stdout.buffer, b"{}")
    while ended := _ended_copy(known, seconds):
        if ended == -signal.SIGKILL:  # by someone else, or because the machine has no memory left: not the grammar's
            return
        _answer(error=_reason(ended, seconds))


def _ended_copy(known: _Known, seconds: float) -> int:
    """Exit status of a copy of this process that has answered what it could; 0 where there was no more to answer."""
    copy = os.fork()
    if not copy:
        _try_out(known, seconds)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])


def _reason(status: int, seconds: float) -> str:
    match -status:
        case signal.SIGPROF:
            return f"it takes more than {seconds:g} s to compile"
        case signal.SIGABRT:  # native code aborts where it gets no memory
            return "it takes too much memory to compile"
        case _:
            return "it is nested too deeply, or too large, to compile"


def _try_out(known: _Known, seconds: float) -> None:
    """Until the input ends, or a grammar takes too much."""
    executor, most = LLExecutor(num_threads=1), _address_space() + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # what a grammar ends leaves no image of itself
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        # Seconds of a processor, whatever else is busy. Nobody handles the signal: it ends the process.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        answer = _answer_to(json.loads(frame), known, executor)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _answer(**answer)


def _answer_to(job: dict[str, Any], known: _Known, executor: LLExecutor) -> dict[str, Any]:
    try:
        return _tried(job, known, executor)
    except ParameterError as error:
        return {"refusal": (error.param, error.message)}
    except MemoryError:
        os.abort()  # as native code does: the next copy has all that it may have
    except Exception as error:
        return _unexpected(job, error)


def _tried(job: dict[str, Any], known: _Known, executor: LLExecutor) -> dict[str, Any]:
    constraint = Constraint(**job["constraint"])
    text = grammar_text(constraint, known.special_ids, forces=job["forces"])
    if len(text) > _MOST_CHARS:
        return {"error": f"it stands for a grammar of more than {_MOST_CHARS:,} characters"}
    before = allocated()
    found = LLMatcher(known.tokenizer, text, log_level=0, limits=LIMITS)
    _go_on(found, known.tokenizer, executor)
    error, taken = found.get_error(), max(allocated() - before, 0)
    if error:
        return {"error": error}
    if job["calls"]:
        _check_grammars(constraint, job["calls"], known)
    return {"error": "", "text": text, "bytes": taken}


def _check_grammars(constraint: Constraint, calls: Sequence[Sequence[int]], known: _Known) -> None:
    """Raises ParameterError for a grammar beside calls whose text may begin as a call does."""
    for part in parts_of(constraint):
        if part.kind == "grammar" and _may_begin(unforced(grammar_text(part, known.special_ids)), calls, known):
            raise ParameterError(part.param, "may begin as a tool call does; give tool_choice `none`")


def _may_begin(grammar: str, calls: Sequence[Sequence[int]], known: _Known) -> bool:
    alone = ((LLMatcher(known.tokenizer, grammar, log_level=0), [*ids]) for ids in calls)
    return any(matcher.try_consume_tokens(ids) == len(ids) for matcher, ids in alone)


def _unexpected(job: dict[str, Any], error: Exception) -> dict[str, Any]:
    """A defect of this package costs the one constraint that meets it."""
    asked, kind = job["constraint"], type(error).__name__
    reason = f"this {asked['kind']} is refused: it could not be compiled ({kind})"
    return {"refusal": (asked["param"], reason), "unexpected": traceback.format_exc()}


def _go_on(found: LLMatcher, tokenizer: LLTokenizer, executor: LLExecutor) -> None:
    """Advance by a token: a grammar that begins but cannot go on would fail in a request."""
    mask = np.zeros((1, -(-tokenizer.vocab_size // 32)), np.int32)
    if found.is_error():
        return
    fill_next_token_bitmask_par(executor, [(found, 0)], mask)
    legal = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    legal = legal[~np.isin(legal, tokenizer.eos_tokens)]
    if not found.is_error() and len(legal) and found.consume_tokens([int(legal[0])]):
        fill_next_token_bitmask_par(executor, [(found, 0)], mask)


def _answer(**said: Any) -> None:
    write_frame(sys.stdout.buffer, json.dumps(said).encode())


def _address_space() -> int:
    """Bytes of this process's address space."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * _PAGE


if __name__ == "__main__":
    main()
