"""Incremental detokenisation: the text that each new token adds."""

import codecs
from collections.abc import Sequence

import numpy as np

from jaxinfer.text.tokenizer.pieces import Pieces
from jaxinfer.text.tokenizer.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_HELD_TOKENS = 16
_HALF_BYTES = 3  # the most that UTF-8 can lack of a character's end


class Detokenizer:
    """Turns a growing sequence of token ids into pieces of text.

    A piece never ends in half a character: bytes are held back until their character is complete, or
    can no longer become one. `flush` gives what is left. The pieces join to what `Tokenizer.decode` makes of
    prompt and tokens, after the part of it that it makes of the prompt alone; a character that begins in the
    prompt and is completed by the tokens is theirs.

    prompt_token_ids: what stands before. It decides whether a leading space belongs to the text.
    skip_special_tokens: special tokens give no text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: np.ndarray | Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
    ):
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        if tokenizer.pieces.exact:
            before = _last_bytes(tokenizer.pieces, prompt_token_ids, self._skipped)
            self._decoder: _ByteDecoder | _WindowDecoder = _ByteDecoder(tokenizer.pieces, before)
        else:
            context = [token for token in map(int, prompt_token_ids[-8:]) if token not in self._skipped]
            self._decoder = _WindowDecoder(tokenizer, context)

    def push(self, token_id: int) -> str:
        """The text that became complete with this token; often empty."""
        return "" if token_id in self._skipped else self._decoder.push(token_id)

    def flush(self) -> str:
        """Return the text that was held back, half characters as U+FFFD. Ends the sequence."""
        return self._decoder.flush()


def _last_bytes(pieces: Pieces, token_ids: np.ndarray | Sequence[int], skipped: frozenset[int]) -> bytes:
    """The end of the tokens' text, long enough to hold half a character; empty where they have no text."""
    end = b""
    for token in map(int, reversed(token_ids)):
        if token not in skipped:
            end = pieces.piece(token) + end
        if len(end) >= _HALF_BYTES:
            break
    return end


class _ByteDecoder:
    """Decoder for tokenizers whose text is the concatenation of their tokens' bytes.

    before: the last bytes of the preceding text; if they end in half a character, it is shown as U+FFFD there, and
    `_shown` counts how many of these the text must not show again.
    """

    def __init__(self, pieces: Pieces, before: bytes):
        self._pieces = pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")(pieces.utf8_errors)
        self._strip = not before and pieces.strips_space
        self._utf8.decode(before)
        half, _ = self._utf8.getstate()
        self._shown = len(half.decode("utf-8", pieces.utf8_errors))

    def push(self, token_id: int) -> str:
        return self._new(self._utf8.decode(self._pieces.piece(token_id)))

    def flush(self) -> str:
        return self._new(self._utf8.decode(b"", final=True))

    def _new(self, text: str) -> str:
        if text and self._strip:
            self._strip = False
            return text.removeprefix(" ")
        if text and self._shown:
            shown, self._shown = self._shown, 0
            return _without(text, shown)
        return text


def _without(text: str, shown: int) -> str:
    """`text` without the U+FFFD that it begins with, at most `shown` of them."""
    while shown and text.startswith(_REPLACEMENT):
        text, shown = text[1:], shown - 1
    return text


class _WindowDecoder:
    """Decoder for every other tokenizer: decodes a short window twice and takes the text that the new tokens added.

    A window that ends in U+FFFD may end in half a character and is held back, for 16 tokens at most.
    """

    def __init__(self, tokenizer: Tokenizer, context: list[int]):
        self._tokenizer = tokenizer
        self._ids = context
        self._read = len(context)

    def push(self, token_id: int) -> str:
        self._ids.append(token_id)
        text = self._added()
        if not text or (text.endswith(_REPLACEMENT) and len(self._ids) - self._read < _HELD_TOKENS):
            return ""
        self._ids = self._ids[self._read :]
        self._read = len(self._ids)
        return text

    def flush(self) -> str:
        text = self._added()
        self._ids, self._read = [], 0
        return text

    def _added(self) -> str:
        before = self._tokenizer.decode(self._ids[: self._read], skip_special_tokens=False)
        whole = self._tokenizer.decode(self._ids, skip_special_tokens=False)
        complete = before.rstrip(_REPLACEMENT)
        return _without(whole[len(complete) :], len(before) - len(complete))
