"""EngineShapes: the static sizes that scheduler, packing, warm-up and device programs agree on."""

from dataclasses import dataclass
from typing import NamedTuple

from jaxinfer.errors import ParameterError
from jaxinfer.speculation import Speculation

WORD_BITS = 32
"""Tokens of a word of a mask."""


class KVGroup(NamedTuple):
    """Layers that share one pool of blocks and one block table.

    window: tokens that a query sees, itself included; None: all before it.
    num_blocks: blocks of the pool, the scratch block 0 included.
    """

    window: int | None
    num_blocks: int


@dataclass(frozen=True)
class EngineShapes:
    """Sizes, all in tokens, rows or blocks; constant from start to end of an engine.

    shards: groups of devices that attend for different requests (attention data parallelism). All other sizes are those
    of one shard, which has slots and blocks of its own.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_scored: int
    max_model_len: int
    block_size: int
    groups: tuple[KVGroup, ...]
    vocab_size: int
    admit_slots: int = 8
    """Slots that one call of `admit` fills."""
    admit_counts: int = 1024
    """Entries of penalty counts that one call of `admit` carries."""
    copy_blocks: int = 8
    """Blocks a group that are copied for forks before one step."""
    decode_steps: int = 1
    """Decode steps of one dispatch, at most."""
    drafting: Speculation | None = None
    """Method by which the next tokens of rows are drafted; None: no drafting."""
    shards: int = 1
    stages: int = 1
    """Stages of the pipeline, each of which has some of the layers."""
    few_sizes: bool = False
    """True if programs are compiled for few sizes: a CPU computes next to nothing for padding."""

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ParameterError("max_num_batched_tokens", f"must be at least max_num_seqs, {self.max_num_seqs}")
        if self.max_scored < self.max_num_seqs:
            raise ParameterError("max_scored", f"must be at least max_num_seqs, {self.max_num_seqs}")
        if self.decode_steps < 1:
            raise ParameterError("decode_steps", "must be at least 1")
        if self.decode_steps > 1 and self.drafting is not None:
            raise ParameterError("decode_steps", "must be 1 with speculative_config, whose steps give several tokens")
        if self.stages > 1 and self.decode_steps > 1:
            raise ParameterError("decode_steps", "must be 1 in a pipeline of several stages")
        if self.stages > 1 and self.drafting is not None and self.drafting.method == "eagle3":
            raise ParameterError(
                "speculative_config",
                "method eagle3 reads hidden states of layers that lie on several stages of a pipeline; ngram and a "
                "draft model are allowed",
            )

    @property
    def row_tokens(self) -> int:
        """Tokens that a row may get by one dispatch, at most."""
        return self.decode_steps if self.drafting is None else 1 + self.drafting.tokens

    @property
    def slot_masks(self) -> int:
        """Masks of a slot: one, or where rows draft one for each token that a row may get by a step."""
        return 1 if self.drafting is None else self.row_tokens

    @property
    def takes_predictions(self) -> bool:
        """True if drafts come from a slot's tokens, and so from a prediction."""
        return self.drafting is not None and self.drafting.method == "ngram"

    @property
    def all_seqs(self) -> int:
        """Sequences that run at once on all shards. The host numbers their slots from 0, shard by shard."""
        return self.max_num_seqs * self.shards

    @property
    def blocks_per_row(self) -> int:
        """Width of a block table."""
        return -(-self.max_model_len // self.block_size)

    @property
    def mask_words(self) -> int:
        """Words of a mask: a bit for each token of the vocabulary."""
        return -(-self.vocab_size // WORD_BITS)

    @property
    def scratch_slot(self) -> int:
        """The slot that padding rows read and write."""
        return self.max_num_seqs

    @property
    def num_slots(self) -> int:
        """Rows of every slot-state array, the scratch slot included."""
        return self.max_num_seqs + 1
