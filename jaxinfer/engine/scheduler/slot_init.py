"""What the device is given with a slot, from the sequence that gets it."""

import numpy as np

from jaxinfer.engine.sequence import Sequence
from jaxinfer.engine.step.slot_init import MAX_COUNT, SEEN_IN_PROMPT, SlotInit


def slot_init(sequence: Sequence) -> SlotInit:
    """The slot state of a sequence that has just got its slot, with all of its known tokens."""
    return SlotInit(
        slot=sequence.slot,
        length=sequence.num_known - 1,
        last_token=int(sequence.tokens[-1]),
        prompt_len=sequence.prompt_len,
        remaining=sequence.limit - sequence.num_known,
        seed=sequence.seed,
        sequence_index=sequence.index,
        params=sequence.params,
        stop_ids=tuple(sequence.stop_ids),
        blocks=tuple(list(blocks) for blocks in sequence.kv.blocks),
        counts=packed_counts(sequence) if sequence.params.uses_counts else None,
    )


def packed_counts(sequence: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """(token ids, packed counts) of a sequence's known tokens, both int32, ids distinct."""
    ids, where = np.unique(sequence.tokens, return_inverse=True)
    generated = np.bincount(where[sequence.prompt_len :], minlength=len(ids))
    seen = np.zeros(len(ids), np.int32)
    seen[where[: sequence.prompt_len]] = SEEN_IN_PROMPT
    return ids.astype(np.int32), (seen + np.minimum(generated, MAX_COUNT)).astype(np.int32)
