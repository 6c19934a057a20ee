"""What `allowed_token_ids` and `bad_words` mean, from their description alone: one token after another, no masks."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from jaxinfer.sampling import SamplingParams

FEW = (3, 7, 11, 12, 20)
"""So few that sequences of two and three are drawn, and that a grammar may leave none of them; 7 ends a text."""
RULES: dict[str, dict[str, Any]] = {
    "none": {},
    "few": {"allowed_token_ids": FEW},
    "bad": {"bad_token_ids": [(5,), (9,), (60,)]},
    "both": {"allowed_token_ids": FEW, "bad_token_ids": [(3,), (11, 12), (12, 12, 20), (11, 11)]},
    "dead ends": {"allowed_token_ids": (11, 12, 20), "bad_token_ids": [(11, 12), (11, 20), (20, 11, 11), (12, 12, 12)]},
}


def kept(params: SamplingParams, ids: Iterable[int], outputs: Sequence[int], stops: Collection[int]) -> list[int]:
    """Of some ids those that the rules let follow these outputs."""
    if not params.allowed_token_ids and not params.bad_token_ids:
        return list(ids)
    early = len(outputs) < params.min_tokens
    return [
        token
        for token in ids
        if (not params.allowed_token_ids or token in params.allowed_token_ids)
        and not any(_ends_with([*outputs, token], bad) for bad in params.bad_token_ids)
        and not (early and token in stops)
    ]


def _ends_with(tokens: list[int], end: Sequence[int]) -> bool:
    return tuple(tokens[-len(end) :]) == tuple(end)
