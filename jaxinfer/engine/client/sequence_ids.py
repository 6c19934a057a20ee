"""SequenceIds: which sequence of which request an id names, as far as a client has heard of it."""

from collections.abc import Iterable
from typing import NamedTuple

from jaxinfer.engine.types import StepOutput, TokenDelta


class SequenceName(NamedTuple):
    """Sequence `index` of a request."""

    request_id: str
    index: int


class SequenceIds:
    """Learns ids from the first delta of each sequence, and forgets them with the last."""

    def __init__(self) -> None:
        self._by_id: dict[int, SequenceName] = {}

    def expand(self, outputs: Iterable[StepOutput]) -> list[TokenDelta]:
        """Return what steps add, a delta for each sequence and step, in the order of the steps."""
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
        self._by_id = {id: name for id, name in self._by_id.items() if name.request_id not in gone}

    def _expand_plain(self, output: StepOutput, deltas: list[TokenDelta]) -> None:
        tokens, at = output.tokens.tolist(), 0
        for sequence_id, count in zip(output.sequence_ids.tolist(), output.counts.tolist(), strict=True):
            name = self._by_id.get(sequence_id)
            if name is not None:
                deltas.append(TokenDelta(name.request_id, name.index, tokens[at : at + count]))
            at += count

    def _note(self, delta: TokenDelta) -> None:
        if delta.finish_reason is not None:
            self._by_id.pop(delta.sequence_id, None)
        elif delta.sequence_id not in self._by_id:
            self._by_id[delta.sequence_id] = SequenceName(delta.request_id, delta.index)
