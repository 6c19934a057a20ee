"""Tries grammars out in a process of its own: what makes llguidance take too much, or crash, ends this process alone.

Reads and writes frames of text/limited_process.py: first `{"tokenizer", "vocab_size", "eos_ids"}`, which is answered
with `{}`; then grammars, each answered with `{"error", "bytes"}`: what it says, empty where it compiles and goes on
after a token, and what it took.
"""

import json
import os
import resource
import sys

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask_par

from jaxinfer.grammar.reading import LIMITS, read_tokenizers
from jaxinfer.text.limited_process import read_frame, write_frame

_MEMORY = 1 << 30
"""Bytes of one grammar, beside what the process has when it begins."""
_NICENESS = 10
"""Whoever streams goes first."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Answers until its input ends."""
    first = read_frame(sys.stdin.buffer)
    if first is None:
        return
    tokenizer, executor = read_tokenizers(**json.loads(first)).guided, LLExecutor(num_threads=1)
    os.nice(_NICENESS)
    most = _taken(0) + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    write_frame(sys.stdout.buffer, b"{}")
    while (grammar := read_frame(sys.stdin.buffer)) is not None:
        before = _taken(1)
        found = LLMatcher(tokenizer, grammar.decode(), log_level=0, limits=LIMITS)
        _go_on(found, tokenizer, executor)
        answer = {"error": found.get_error(), "bytes": max(_taken(1) - before, 0)}
        del found
        write_frame(sys.stdout.buffer, json.dumps(answer).encode())


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


def _taken(column: int) -> int:
    """Bytes of this process: of its address space (0), or of memory (1)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[column]) * _PAGE


if __name__ == "__main__":
    main()
