"""Choices: which choice of which request a handle names."""

from collections.abc import Iterable
from typing import NamedTuple

from jaxinfer.engine.types import StepOutput, TokenDelta


class Choice(NamedTuple):
    """Choice `index` of a request."""

    request_id: str
    index: int


class Choices:
    """Learns handles from the first delta of each choice, and forgets them with the last."""

    def __init__(self) -> None:
        self._by_handle: dict[int, Choice] = {}

    def expand(self, outputs: Iterable[StepOutput]) -> list[TokenDelta]:
        """What steps add, a delta for each choice and step, in the order of the steps."""
        deltas: list[TokenDelta] = []
        for output in outputs:
            self._expand_plain(output, deltas)
            for delta in output.deltas:
                self._note(delta)
            deltas += output.deltas
        return deltas

    def forget(self, request_ids: Iterable[str]) -> None:
        """Forgets requests whose end will not be heard."""
        gone = set(request_ids)
        self._by_handle = {handle: choice for handle, choice in self._by_handle.items() if choice[0] not in gone}

    def _expand_plain(self, output: StepOutput, deltas: list[TokenDelta]) -> None:
        tokens, at = output.tokens.tolist(), 0
        for handle, count in zip(output.handles.tolist(), output.counts.tolist(), strict=True):
            choice = self._by_handle.get(handle)
            if choice is not None:
                deltas.append(TokenDelta(choice.request_id, choice.index, tokens[at : at + count]))
            at += count

    def _note(self, delta: TokenDelta) -> None:
        if delta.finish_reason is not None:
            self._by_handle.pop(delta.handle, None)
        elif delta.handle not in self._by_handle:
            self._by_handle[delta.handle] = Choice(delta.request_id, delta.index)
