"""LimitedProcess: a process that one thread asks, and another ends."""

import sys
from typing import Any

from jaxinfer.text.limited_process import LimitedProcess


def test_it_can_be_ended_while_another_thread_closes_it() -> None:
    """`kill` must look at the process once: `close` may take it away between two looks."""

    class ClosedMeanwhile(LimitedProcess):
        looks = 0

        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if name == "_process" and value is not None:
                ClosedMeanwhile.looks += 1
                if ClosedMeanwhile.looks == 1:
                    self._process = None  # what `close` of another thread does first
            return value

    process = LimitedProcess([sys.executable, "-c", "input()"], wall_seconds=30)
    process.start()
    popen = process._process
    assert popen is not None
    process.__class__ = ClosedMeanwhile
    process.kill()
    assert ClosedMeanwhile.looks == 1
    assert popen.wait() == -9
    for stream in (popen.stdin, popen.stdout):
        assert stream is not None
        stream.close()
