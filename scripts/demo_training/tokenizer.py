"""The tokenizer: byte-level BPE in which each digit, and each common word, is one token."""

import json
from collections import Counter
from itertools import islice

from demo_data import conversations, plain_texts
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from demo_training.template import END_OF_TEXT, IM_END, IM_START, TAGS, pieces

SPECIAL = (END_OF_TEXT, IM_START, IM_END)


def train_tokenizer(seed: int, vocab_size: int, merged: int = 900, samples: int = 60_000) -> Tokenizer:
    """Merges make the first `merged` entries; the most frequent whole words of the data fill the rest.

    A word that is an entry is one token whatever the merges say (`ignore_merges`), with a space before it or without.
    """
    texts = _texts(seed, samples)
    base = _bpe(texts, merged)
    state = json.loads(base.to_str())["model"]
    vocabulary: dict[str, int] = state["vocab"]
    for word in _frequent(base, texts):
        if len(vocabulary) >= vocab_size:
            break
        vocabulary.setdefault(word, len(vocabulary))
    merges = [tuple(pair) for pair in state["merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    tokenizer.pre_tokenizer, tokenizer.decoder = _pre_tokenizer(), decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAGS])
    return tokenizer


def special(tokenizer: Tokenizer, text: str) -> int:
    """The id of a special token."""
    token = tokenizer.token_to_id(text)
    if token is None:
        raise ValueError(f"the tokenizer has no {text}")
    return token


def _texts(seed: int, samples: int) -> list[str]:
    chats = ("".join(text for text, _ in pieces(c)) for c in islice(conversations(seed), samples))
    return [*chats, *islice(plain_texts(seed), samples // 20)]


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return pre_tokenizers.Sequence(parts)


def _bpe(texts: list[str], size: int) -> Tokenizer:
    """Specials and tags first, then bytes and merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _pre_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[*SPECIAL, *TAGS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _frequent(tokenizer: Tokenizer, texts: list[str]) -> list[str]:
    """Words of the data, the most frequent first; the same for each run."""
    pre, counts = tokenizer.pre_tokenizer, Counter[str]()
    assert pre is not None
    for text in texts:
        for mark in (*SPECIAL, *TAGS):
            text = text.replace(mark, "\n")
        counts.update(word for word, _ in pre.pre_tokenize_str(text))
    return sorted((word for word in counts if counts[word] > 3), key=lambda word: (-counts[word], word))
