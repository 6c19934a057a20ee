"""What a request that enters a slot tells the device."""

import numpy as np

from jaxinfer.engine.sequence import Request
from jaxinfer.engine.step.plan import MAX_COUNT, SEEN_IN_PROMPT, SlotInit


def slot_init(request: Request) -> SlotInit:
    """The slot state of a request that has just got its slot, with all of its known tokens."""
    return SlotInit(
        slot=request.slot,
        length=request.num_known - 1,
        last_token=int(request.tokens[-1]),
        prompt_len=request.prompt_len,
        remaining=request.limit - request.num_known,
        seed=request.seed,
        choice=request.index,
        params=request.params,
        stop_ids=tuple(request.stop_ids),
        pages=tuple(list(pages) for pages in request.pages),
        counts=packed_counts(request) if request.params.uses_counts else None,
    )


def packed_counts(request: Request) -> tuple[np.ndarray, np.ndarray]:
    """(token ids, packed counts) of a request's known tokens, both int32, ids distinct."""
    ids, where = np.unique(request.tokens, return_inverse=True)
    generated = np.bincount(where[request.prompt_len :], minlength=len(ids))
    seen = np.zeros(len(ids), np.int32)
    seen[where[: request.prompt_len]] = SEEN_IN_PROMPT
    return ids.astype(np.int32), (seen + np.minimum(generated, MAX_COUNT)).astype(np.int32)
