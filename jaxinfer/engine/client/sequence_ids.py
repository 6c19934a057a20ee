"""Sequence ids: which client's sequence an id names, in its upper bits, and which sequence of which request."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from jaxinfer.engine.types import StepOutput, TokenDelta

_SHIFT = 40


def sequence_id_of(client_id: int, number: int) -> int:
    """The id of an engine's sequence `number`, below 2**40."""
    return (client_id << _SHIFT) + number


def client_id_of(sequence_id: int) -> int:
    """The client whose sequence an id names."""
    return sequence_id >> _SHIFT


def split_by_client(outputs: Sequence[StepOutput], client_ids: Iterable[int]) -> dict[int, list[StepOutput]]:
    """What each client has in these steps; clients that have nothing are left out."""
    found: dict[int, list[StepOutput]] = {}
    for output in outputs:
        of_rows = output.sequence_ids >> _SHIFT
        for client_id in client_ids:
            rows = of_rows == client_id
            deltas = [delta for delta in output.deltas if client_id_of(delta.sequence_id) == client_id]
            if deltas or rows.any():
                tokens = output.tokens[np.repeat(rows, output.counts)]
                part = StepOutput(output.sequence_ids[rows], output.counts[rows], tokens, deltas)
                found.setdefault(client_id, []).append(part)
    return found


class SequenceName(NamedTuple):
    """Sequence `index` of a request."""

    request_id: str
    index: int


class SequenceIds:
    """Learns ids from the first delta of each sequence, and forgets them with the last."""

    def __init__(self) -> None:
        self._by_id: dict[int, SequenceName] = {}

    def expand(self, outputs: Iterable[StepOutput]) -> list[TokenDelta]:
        """What steps add, a delta for each sequence and step, in the order of the steps."""
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
