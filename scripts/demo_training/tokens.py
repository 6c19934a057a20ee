"""Rows of tokens to train on: several conversations a row, none of which sees another."""

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import numpy as np
from demo_data import Conversation, conversations, plain_texts
from tokenizers import Tokenizer

from demo_training.template import END_OF_TEXT, pieces

SHAPES = ((32, 128), (16, 256))
"""Rows and their length, for short conversations and for long ones: 4,096 tokens each."""

_PLAIN_SHARE = 0.02
_ASIDE = 64  # documents that fit nowhere before a batch is given out


class Batch(NamedTuple):
    """tokens, positions, segments: [rows, length] int32, segment 0 is padding. at, targets: [scored] int32, the place
    before a token that has to be said, in the flattened rows, and that token. weights: [scored] float32, 0 for padding.
    """

    tokens: np.ndarray
    positions: np.ndarray
    segments: np.ndarray
    at: np.ndarray
    targets: np.ndarray
    weights: np.ndarray


class Document(NamedTuple):
    """Token ids, and which of them the model has to say."""

    ids: list[int]
    said: list[bool]


class Packer:
    """Puts documents into the rows of one batch."""

    def __init__(self, rows: int, length: int):
        self.rows, self.length = rows, length
        self._open: list[list[Document]] = [[] for _ in range(rows)]
        self._free = [length] * rows
        self._aside: list[Document] = []

    def add(self, document: Document) -> Batch | None:
        """Puts a document into the fullest row that it fits; returns a batch when too many fit nowhere."""
        if self._put(document):
            return None
        self._aside.append(document)
        return self.take() if len(self._aside) >= _ASIDE else None

    def take(self) -> Batch:
        """The rows as they are; what was set aside goes into new ones."""
        packed, aside = self._open, self._aside
        self.__init__(self.rows, self.length)
        for document in aside:
            self._put(document)
        return pack(packed, self.length)

    def _put(self, document: Document) -> bool:
        size = len(document.ids)
        fits = [row for row in range(self.rows) if self._free[row] >= size]
        if not fits:
            return False
        row = min(fits, key=self._free.__getitem__)
        self._open[row].append(document)
        self._free[row] -= size
        return True


def pack(rows: list[list[Document]], length: int) -> Batch:
    """Rows of documents as arrays; at most half of the tokens are scored."""
    tokens, positions, segments = (np.zeros((len(rows), length), np.int32) for _ in range(3))
    said = np.zeros((len(rows), length), bool)
    for row, documents in enumerate(rows):
        start = 0
        for segment, document in enumerate(documents, 1):
            part = slice(start, start + len(document.ids))
            tokens[row, part], said[row, part] = document.ids, document.said
            positions[row, part], segments[row, part] = np.arange(len(document.ids)), segment
            start = part.stop
    at = np.flatnonzero(said.reshape(-1))[: tokens.size // 2] - 1
    padding = tokens.size // 2 - len(at)
    weights = np.pad(np.ones(len(at), np.float32), (0, padding))
    targets = np.pad(tokens.reshape(-1)[at + 1], (0, padding))
    return Batch(tokens, positions, segments, np.pad(at, (0, padding)).astype(np.int32), targets, weights)


def batches(tokenizer: Tokenizer, seed: str) -> Iterator[Batch]:
    """Endless batches of the two shapes. The same seed gives the same ones."""
    packers = [Packer(rows, length) for rows, length in SHAPES]
    for document in documents(tokenizer, seed):
        fitting = next((packer for packer in packers if len(document.ids) <= packer.length), None)
        batch = fitting.add(document) if fitting else None
        if batch is not None:
            yield batch


def documents(tokenizer: Tokenizer, seed: str) -> Iterator[Document]:
    """Endless conversations as tokens, and now and then a plain text, all of which is learned."""
    rng, chats, plain = Random(seed), conversations(seed), plain_texts(seed)
    while True:
        if rng.random() < _PLAIN_SHARE:
            ids = tokenizer.encode(next(plain) + END_OF_TEXT, add_special_tokens=False).ids
            yield Document(ids, [False] + [True] * (len(ids) - 1))
        else:
            yield document_of(tokenizer, next(chats))


def document_of(tokenizer: Tokenizer, conversation: Conversation) -> Document:
    """A conversation as tokens."""
    parts = pieces(conversation)
    encoded = tokenizer.encode_batch([text for text, _ in parts], add_special_tokens=False)
    ids = [token for piece in encoded for token in piece.ids]
    return Document(ids, [said for piece, (_, said) in zip(encoded, parts, strict=True) for _ in piece.ids])
