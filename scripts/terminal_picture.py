"""Runs a command in a terminal of its own and draws what stands there as SVG, so that people can look at it.

    .venv/bin/python scripts/terminal_picture.py --out serve.svg --until "try:" -- .venv/bin/jaxinfer serve
    .venv/bin/python scripts/terminal_picture.py --out chat.svg --type "> =Hello!" --until "> " \\
        -- .venv/bin/jaxinfer chat

`--type WAIT=TEXT` waits until the cursor's line begins with WAIT, then types TEXT and Enter; several follow each other.
"""

import argparse
import fcntl
import io
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path

import pyte
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

_SETTLE_SECONDS = 0.7


class Terminal:
    """A command that believes it has a terminal, and the screen that it has drawn."""

    def __init__(self, command: list[str], columns: int, rows: int):
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self._stream = pyte.ByteStream(self.screen)
        self._process, self._ours = pty.fork()
        if self._process == 0:
            os.environ.update(TERM="xterm-256color", COLUMNS=str(columns), LINES=str(rows))
            os.execvp(command[0], command)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, text: str, seconds: float, *, at_prompt: bool = False) -> None:
        """Reads until `text` is on the screen (at_prompt: begins the line of the cursor) and nothing more comes."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not self._read() and self._shows(text, at_prompt):
                return
        raise SystemExit(f"{text!r} did not appear in {seconds:.0f} s; the screen:\n" + "\n".join(self.screen.display))

    def type(self, text: str) -> None:
        """Types a line."""
        os.write(self._ours, text.encode() + b"\n")

    def close(self) -> None:
        """Ends the command."""
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._ours)

    def _read(self) -> bool:
        """False where nothing has come for a while."""
        if not select.select([self._ours], [], [], _SETTLE_SECONDS)[0]:
            return False
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # the command has ended
            return False
        # pyte knows no dimmed text; grey stands for it.
        self._stream.feed(data.replace(b"\x1b[2m", b"\x1b[90m"))
        return bool(data)

    def _shows(self, text: str, at_prompt: bool) -> bool:
        if at_prompt:
            return self.screen.display[self.screen.cursor.y].startswith(text)
        return any(text in line for line in self.screen.display)


def picture(screen: pyte.Screen, title: str) -> str:
    """The screen as SVG, without the empty lines at its end."""
    lines = [_line(screen, y) for y in range(screen.lines)]
    while lines and not lines[-1].plain.strip():
        lines.pop()
    console = Console(record=True, width=screen.columns, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(line, no_wrap=True, overflow="crop")
    return console.export_svg(title=title)


def _line(screen: pyte.Screen, y: int) -> Text:
    line = Text()
    for x in range(screen.columns):
        char = screen.buffer[y][x]
        line.append(char.data, Style(color=_color(char.fg), bold=char.bold, italic=char.italics, reverse=char.reverse))
    line.rstrip()
    return line


def _color(name: str) -> Color | None:
    if name == "default":
        return None
    known = {"brown": "yellow", "brightbrown": "bright_yellow"}.get(name, name.replace("bright", "bright_"))
    return Color.parse(f"#{name}" if len(name) == 6 and not name.isalpha() else known)


def main() -> int:
    """Draws the picture; the exit status is 1 where a text does not appear."""
    options = _options()
    terminal = Terminal(options.command, options.columns, options.rows)
    try:
        for step in options.type:
            wait, _, text = step.partition("=")
            terminal.wait_for(wait, options.seconds, at_prompt=True)
            terminal.type(text)
            time.sleep(_SETTLE_SECONDS)
        terminal.wait_for(options.until, options.seconds, at_prompt=bool(options.type))
    finally:
        terminal.close()
    title = " ".join([Path(options.command[0]).name, *options.command[1:]])
    options.out.write_text(picture(terminal.screen, title), encoding="utf-8")
    print(f"{options.out}: {options.out.stat().st_size} bytes")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="SVG file to write")
    parser.add_argument("--until", required=True, help="text that shows that the picture is complete")
    parser.add_argument("--type", action="append", default=[], help="WAIT=TEXT: what to type, and after what")
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=120, help="how long to wait for a text")
    parser.add_argument("command", nargs="+", help="the command, after --")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
