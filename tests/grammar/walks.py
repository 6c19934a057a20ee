"""Random walks under masks: texts that a model without any sense might write."""

import random

import numpy as np
from tokenizers import Tokenizer

from jaxinfer.constraint import Constraint
from jaxinfer.grammar.grammars import Grammars
from jaxinfer.grammar.matcher import GrammarMatcher
from jaxinfer.sampling import SamplingParams
from tests.material import REPOSITORY

FILE = REPOSITORY / "jaxinfer" / "demo" / "tokenizer.json"
TOKENIZER = Tokenizer.from_file(str(FILE))
SIZE = TOKENIZER.get_vocab_size()
END = 0
"""The end of a text, in the demo's vocabulary."""


def compiled(grammars: Grammars, constraint: Constraint, stop_ids: frozenset[int] = frozenset({END})) -> GrammarMatcher:
    return grammars.compile(SamplingParams(structured_outputs=constraint), stop_ids)


def legal(grammars: Grammars, matcher: GrammarMatcher, vocab_size: int) -> list[int]:
    """Ids that may come next. Asserts that the mask could be filled."""
    rows = np.zeros((1, -(-vocab_size // 32)), np.int32)
    assert grammars.fill([matcher], rows) == {}
    return np.flatnonzero(np.unpackbits(rows.view(np.uint8), bitorder="little")).tolist()


def walk(grammars: Grammars, matcher: GrammarMatcher, vocab_size: int, draw: random.Random, most: int) -> list[int]:
    """Ids of one text; it may be unfinished where it has `most` of them."""
    ids: list[int] = []
    while not matcher.ended and len(ids) < most:
        token = draw.choice(legal(grammars, matcher, vocab_size))
        if token == END:
            break
        matcher.accept([token])
        ids.append(token)
    else:
        if not matcher.ended:
            return []
    return ids
