"""Ends the process at once on SIGINT and SIGTERM, whatever its threads are at."""

import contextlib
import os
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

ENDING = (signal.SIGTERM, signal.SIGINT)
FROM_PARENT = signal.SIGINT
"""Signal by which a server's first process tells the others to end. SIGTERM may reach all of them at once, as systemd
sends it: processes that serve must outlast those that send them requests."""

_SHOW_CURSOR = b"\x1b[?25h\n"


def end_at_once_on_signals() -> None:
    """From now on a signal is a process's end. Without effect outside of the main thread."""
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            signal.signal(number, end_at_once)


def ignore_sigterm() -> None:
    """From now on SIGTERM is for others; programs that this process starts know nothing of it."""
    signal.signal(signal.SIGTERM, lambda number, frame: None)


def show_cursor() -> None:
    """Show the terminal's cursor again, which a progress bar hides."""
    if os.isatty(2):
        os.write(2, _SHOW_CURSOR)


def end_at_once(number: int, frame: FrameType | None = None) -> None:
    """Ends the process with the status that a shell gives to a signal: 130 for SIGINT, 143 for SIGTERM.

    An exception instead would wait for XLA's threads, which cannot be interrupted, or tear down what they use.
    Nothing is flushed: a pipe that nobody reads would block, and what is printed is flushed when it is.
    """
    show_cursor()
    os._exit(128 + number)


def end_process(status: int) -> NoReturn:
    """Ends the process with what was printed, but without Python's teardown, in which a signal would kill it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
