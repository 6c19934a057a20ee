"""Log-probabilities of many positions as a few arrays: a long prompt has too many for a message each."""

from collections.abc import Sequence

import numpy as np

from jaxinfer.engine.types import TokenLogprobs
from jaxinfer.rpc import engine_pb2 as pb


def pack_logprobs(entries: Sequence[TokenLogprobs]) -> pb.Logprobs:
    """Entries that all tell as many of the most likely tokens."""
    top = len(entries[0].top) if entries else 0
    return pb.Logprobs(
        token_ids=np.array([entry.token_id for entry in entries], "<i4").tobytes(),
        logprobs=np.array([entry.logprob for entry in entries], "<f4").tobytes(),
        ranks=np.array([entry.rank for entry in entries], "<i4").tobytes(),
        top=top,
        top_ids=np.array([token for entry in entries for token, _ in entry.top], "<i4").tobytes(),
        top_logprobs=np.array([value for entry in entries for _, value in entry.top], "<f4").tobytes(),
    )


def unpack_logprobs(message: pb.Logprobs) -> list[TokenLogprobs]:
    """The entries. Raises ValueError where the arrays do not fit each other."""
    ids, ranks = np.frombuffer(message.token_ids, "<i4"), np.frombuffer(message.ranks, "<i4")
    logprobs, count = np.frombuffer(message.logprobs, "<f4"), len(ids)
    top_ids = np.frombuffer(message.top_ids, "<i4").reshape(count, message.top).tolist()
    top_logprobs = np.frombuffer(message.top_logprobs, "<f4").reshape(count, message.top).tolist()
    return [
        TokenLogprobs(token, logprob, rank, list(zip(*top, strict=True)))
        for token, logprob, rank, *top in zip(
            ids.tolist(), logprobs.tolist(), ranks.tolist(), top_ids, top_logprobs, strict=True
        )
    ]
