"""Construction of llguidance's tokenizer, and the limits within which it works."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from llguidance import LLParserLimits, LLTokenizer
from tokenizers import Tokenizer

LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
"""Its own defaults but for states and sizes, which bound what a grammar that is in use may come to take."""


class Tokenizers(NamedTuple):
    """A tokenizer as its own library has it, and as llguidance has it."""

    own: Tokenizer
    guided: LLTokenizer


def read_tokenizers(tokenizer: str, vocab_size: int, eos_ids: Sequence[int]) -> Tokenizers:
    """tokenizer: a tokenizer.json. vocab_size: the model's; where the tokenizer knows more tokens, masks have them.
    Takes a second for a large one."""
    text = Path(tokenizer).read_text(encoding="utf-8")
    own = Tokenizer.from_str(text)
    size = own.get_vocab_size()
    # Ends that the tokenizer does not know are set in masks all the same, as stop ids are.
    eos = [each for each in eos_ids if each < size] or None
    return Tokenizers(own, LLTokenizer(text, n_vocab=max(size, vocab_size), eos_token=eos))


def special_ids(read: Tokenizers) -> dict[str, int]:
    """Added tokens that llguidance takes for no text, by how they are written: control tokens, and others in angle
    brackets."""
    added = read.own.get_added_tokens_decoder()
    return {
        token.content: each for each, token in added.items() if token.content and read.guided.is_special_token(each)
    }
