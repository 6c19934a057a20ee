"""Which of our models stands for the one that a test file asks for, and whether its server prepares all programs."""

import os
from pathlib import Path
from typing import NamedTuple

MODELS = Path(os.environ["JAXINFER_SUITE_MODELS"])
# Completions that have to go on: the demo model ends after a text that is no conversation.
BASE = {
    "test_completion.py", "test_chunked_prompt.py", "test_basic.py", "test_metrics.py",
    "test_token_in_token_out.py", "test_prompt_validation.py",
}  # fmt: skip
# Chats that have to go on for some tokens: thoughts are longer than the demo model's answers.
THINKING = {"test_chat.py", "test_include_reasoning.py", "test_completion_with_function_calling.py"}
# Tests that wait for seconds only: no program may be prepared meanwhile. All others need few of the programs.
TIMED = {"test_basic.py", "test_metrics.py"}


class Served(NamedTuple):
    """The model's folder, and whether programs are prepared when they are first needed."""

    folder: Path
    lazy: bool


_current = Served(MODELS / "chat", lazy=True)


def choose_for(file: str) -> None:
    """From now on what suits the tests in `file`."""
    global _current
    kind = "base" if file in BASE else "thinking" if file in THINKING else "chat"
    _current = Served(MODELS / kind, file not in TIMED)


def folder() -> Path:
    return _current.folder


def size_flags() -> list[str]:
    """Few slots make few programs."""
    return ["--max-num-seqs", "8", *(["--compile", "lazy"] if _current.lazy else [])]
