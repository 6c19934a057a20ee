"""The tokenizer, and rows of tokens to train on."""

from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import NamedTuple

import numpy as np
from demo_data import Conversation, conversations, plain_texts
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from demo_training.template import END_OF_TEXT, IM_END, IM_START, pieces

# What the user says is learned a little: it teaches the words, and answers count more.
_PROMPT_WEIGHT = 0.1
_PLAIN_WEIGHT = 0.5
_PLAIN_SHARE = 0.12


class Batch(NamedTuple):
    """tokens: [rows, length + 1] int32. weights: [rows, length] float32, of each next token in the loss."""

    tokens: np.ndarray
    weights: np.ndarray


def train_tokenizer(seed: int, vocab_size: int, samples: int = 20_000) -> Tokenizer:
    """Byte-level BPE over generated text; every digit is a token of its own, so that sums can be learned."""
    tokenizer = Tokenizer(models.BPE())
    parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT, IM_START, IM_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    chats = ("".join(text for text, _ in pieces(c)) for c in islice(conversations(seed), samples))
    plain = islice(plain_texts(seed), samples // 4)
    tokenizer.train_from_iterator([*chats, *plain], trainer)
    return tokenizer


def special(tokenizer: Tokenizer, text: str) -> int:
    """The id of a special token."""
    token = tokenizer.token_to_id(text)
    if token is None:
        raise ValueError(f"the tokenizer has no {text}")
    return token


def batches(tokenizer: Tokenizer, seed: int, rows: int, length: int) -> Iterator[Batch]:
    """Endless batches. A row begins with a whole text and holds as many as fit, the last one cut."""
    source = _documents(tokenizer, seed)
    while True:
        tokens = np.zeros((rows, length + 1), np.int32)
        weights = np.zeros((rows, length + 1), np.float32)
        for row in range(rows):
            filled = 0
            while filled < length + 1:
                ids, weight = next(source)
                ids, weight = ids[: length + 1 - filled], weight[: length + 1 - filled]
                tokens[row, filled : filled + len(ids)] = ids
                weights[row, filled : filled + len(ids)] = weight
                filled += len(ids)
        yield Batch(tokens, weights[:, 1:])


def _documents(tokenizer: Tokenizer, seed: int) -> Iterator[tuple[list[int], list[float]]]:
    rng, chats, plain = Random(seed), conversations(seed), plain_texts(seed)
    while True:
        if rng.random() < _PLAIN_SHARE:
            yield _weighted(tokenizer, [(next(plain) + END_OF_TEXT, _PLAIN_WEIGHT)])
        else:
            yield _weighted(tokenizer, _chat(next(chats)))


def _chat(conversation: Conversation) -> list[tuple[str, float]]:
    texts = [(text, 1.0 if answer else _PROMPT_WEIGHT) for text, answer in pieces(conversation)]
    return [*texts, (END_OF_TEXT, _PROMPT_WEIGHT)]


def _weighted(tokenizer: Tokenizer, texts: list[tuple[str, float]]) -> tuple[list[int], list[float]]:
    encoded = tokenizer.encode_batch([text for text, _ in texts], add_special_tokens=False)
    ids = [token for piece in encoded for token in piece.ids]
    weights = [weight for piece, (_, weight) in zip(encoded, texts, strict=True) for _ in piece.ids]
    return ids, weights
