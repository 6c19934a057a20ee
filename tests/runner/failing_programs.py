"""Programs of which one fails."""

from typing import Any

import jax


class FailingPrograms:
    """Programs that run, and of which call number `at` of a kind fails then, its donated arguments gone."""

    def __init__(self, programs: Any, kind: str, at: int):
        self._programs, self._kind, self.left = programs, kind, at

    def __getitem__(self, name: tuple[str, int]) -> Any:
        program = self._programs[name]
        if name[0] != self._kind:
            return program
        self.left -= 1
        return _failing(program) if self.left == 0 else program


def _failing(program: Any) -> Any:
    def run(*arguments: Any) -> None:
        jax.block_until_ready(program(*arguments))
        raise RuntimeError("the program failed")

    return run
