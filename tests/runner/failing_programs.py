"""Programs of which one fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax


class FailingPrograms:
    """Programs that run, and of which call number `at` of some kinds fails then, its donated arguments gone."""

    def __init__(self, programs: Any, at: int, *kinds: str):
        self._programs, self._kinds, self.left = programs, kinds, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._programs, name)

    def __getitem__(self, name: tuple[str, int]) -> Any:
        program = self._programs[name]
        if name[0] not in self._kinds:
            return program
        self.left -= 1
        return _failing(program) if self.left == 0 else program


@contextmanager
def failing(runner: Any, at: int, *kinds: str) -> Iterator[None]:
    """Give the first stage of a runner `FailingPrograms` for a while."""
    stage = runner.stages[0]
    programs = stage.programs
    assert {*kinds} <= {name for name, _ in programs.names}
    stage.programs = FailingPrograms(programs, at, *kinds)
    try:
        yield
    finally:
        stage.programs = programs


def _failing(program: Any) -> Any:
    def run(*arguments: Any) -> None:
        jax.block_until_ready(program(*arguments))
        raise RuntimeError("the program failed")

    return run
