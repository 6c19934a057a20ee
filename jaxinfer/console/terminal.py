"""Write a model's text to standard output: unchanged to a pipe, without control characters to a terminal."""

import os
import sys
import unicodedata

_DIM, _CYAN, _PLAIN = "\x1b[2m", "\x1b[36m", "\x1b[0m"


class Output:
    """Standard output. In a pipe or a file, text is written as it is; on a terminal it may be dimmed or coloured."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._styled = self._terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"

    def write(self, text: str) -> None:
        """Write the model's answer."""
        self._write(text, "")

    def dim(self, text: str) -> None:
        """Write the model's thoughts."""
        self._write(text, _DIM)

    def call(self, text: str) -> None:
        """Write a call of a tool, on a line of its own."""
        self._write(f"{text}\n", _CYAN)

    def _write(self, text: str, style: str) -> None:
        if self._terminal:
            # NOTE: an escape sequence could rewrite what stands there, or the terminal's settings.
            text = "".join(char if char in "\n\t" or unicodedata.category(char) != "Cc" else "\ufffd" for char in text)
        sys.stdout.write(f"{style}{text}{_PLAIN}" if style and self._styled else text)
        sys.stdout.flush()
