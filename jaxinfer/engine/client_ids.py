"""Whose a sequence is: its id holds its client's in the upper bits."""

from collections.abc import Iterable, Sequence

import numpy as np

from jaxinfer.engine.types import StepOutput

_SHIFT = 40


def sequence_id_of(client_id: int, number: int) -> int:
    """The id of an engine's sequence `number`, below 2**40."""
    return (client_id << _SHIFT) + number


def client_id_of(sequence_id: int) -> int:
    """The client whose sequence an id names."""
    return sequence_id >> _SHIFT


def split_by_client(outputs: Sequence[StepOutput], client_ids: Iterable[int]) -> dict[int, list[StepOutput]]:
    """Split the outputs of steps by client; clients that have nothing are left out."""
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
