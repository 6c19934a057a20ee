"""Tries grammars out in processes of its own: what makes llguidance take too much, or crash, ends such a process alone.

Reads and writes frames of text/limited_process.py: first `{"tokenizer", "vocab_size", "eos_ids", "seconds"}`, which is
answered with `{}`; then grammars, each answered with `{"error", "bytes"}`: what it says, empty where it compiles and
goes on after a token, and what it took.

A tokenizer takes a second of a processor to read. So this process reads it once, and a copy of the process answers
until a grammar ends it; the next copy takes milliseconds. Else grammars that crash would cost others more than any that
compile.
"""

import json
import os
import resource
import signal
import sys

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask_par

from jaxinfer.grammar.heap import allocated
from jaxinfer.grammar.reading import LIMITS, read_tokenizers
from jaxinfer.text.limited_process import read_frame, write_frame

_MEMORY = 1 << 30
"""Bytes of one grammar, beside what the process has when it begins."""
_NICENESS = 10
"""Whoever streams goes first."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Answers until its input ends."""
    os.nice(_NICENESS)
    first = read_frame(sys.stdin.buffer)
    if first is None:
        return
    settings = json.loads(first)
    seconds = settings.pop("seconds")
    tokenizer = read_tokenizers(**settings).guided
    write_frame(sys.stdout.buffer, b"{}")
    while ended := _ended_copy(tokenizer, seconds):
        if ended == -signal.SIGKILL:  # by someone else, or because the machine has no memory left: not the grammar's
            return
        _answer(_reason(ended, seconds), 0)


def _ended_copy(tokenizer: LLTokenizer, seconds: float) -> int:
    """Exit status of a copy of this process that has answered what it could; 0 where there was no more to answer."""
    copy = os.fork()
    if not copy:
        _try_out(tokenizer, seconds)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])


def _reason(status: int, seconds: float) -> str:
    match -status:
        case signal.SIGALRM:
            return f"it takes more than {seconds:g} s to compile"
        case signal.SIGABRT:  # native code aborts where it gets no memory
            return "it takes too much memory to compile"
        case _:
            return "it is nested too deeply, or too large, to compile"


def _try_out(tokenizer: LLTokenizer, seconds: float) -> None:
    """Until the input ends, or a grammar takes too much."""
    executor, most = LLExecutor(num_threads=1), _address_space() + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    while (grammar := read_frame(sys.stdin.buffer)) is not None:
        before = allocated()
        signal.setitimer(signal.ITIMER_REAL, seconds)  # nobody handles the signal: it ends the process
        found = LLMatcher(tokenizer, grammar.decode(), log_level=0, limits=LIMITS)
        _go_on(found, tokenizer, executor)
        signal.setitimer(signal.ITIMER_REAL, 0)
        error, taken = found.get_error(), max(allocated() - before, 0)
        del found
        _answer(error, taken)


def _go_on(found: LLMatcher, tokenizer: LLTokenizer, executor: LLExecutor) -> None:
    """For a token: what can be begun and not gone on with would fail in a request."""
    mask = np.zeros((1, -(-tokenizer.vocab_size // 32)), np.int32)
    if found.is_error():
        return
    fill_next_token_bitmask_par(executor, [(found, 0)], mask)
    legal = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    legal = legal[~np.isin(legal, tokenizer.eos_tokens)]
    if not found.is_error() and len(legal) and found.consume_tokens([int(legal[0])]):
        fill_next_token_bitmask_par(executor, [(found, 0)], mask)


def _answer(error: str, taken: int) -> None:
    write_frame(sys.stdout.buffer, json.dumps({"error": error, "bytes": taken}).encode())


def _address_space() -> int:
    """Bytes of this process's address space."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * _PAGE


if __name__ == "__main__":
    main()
