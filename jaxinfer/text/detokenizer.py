"""Incremental detokenisation: the text that each new token adds."""

import codecs
from collections.abc import Sequence

from jaxinfer.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_HELD_TOKENS = 16


class Detokenizer:
    """Turns a growing sequence of token ids into pieces of text.

    A piece never ends in half a character: bytes are held back until their character is complete, or
    can no longer become one. `flush` gives what is left. The pieces join to the text of the whole
    sequence as the tokenizer decodes it; where a byte-fallback tokenizer meets bytes that are not
    UTF-8, every byte that belongs to no character is one U+FFFD.

    prompt_token_ids: what stands before. It decides whether a leading space belongs to the text.
    skip_special_tokens: special tokens give no text.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int] = (), *, skip_special_tokens: bool = True):
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        at_start = all(token in self._skipped for token in prompt_token_ids)
        if tokenizer.pieces.exact:
            self._decoder: _ByteDecoder | _WindowDecoder = _ByteDecoder(tokenizer, at_start)
        else:
            context = [token for token in prompt_token_ids[-8:] if token not in self._skipped]
            self._decoder = _WindowDecoder(tokenizer, context)

    def push(self, token_id: int) -> str:
        """The text that became complete with this token; often empty."""
        return "" if token_id in self._skipped else self._decoder.push(token_id)

    def flush(self) -> str:
        """What was held back, half characters as U+FFFD. Ends the sequence."""
        return self._decoder.flush()


class _ByteDecoder:
    """For tokenizers whose text is the sum of their tokens' bytes."""

    def __init__(self, tokenizer: Tokenizer, at_start: bool):
        self._pieces = tokenizer.pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = at_start and tokenizer.pieces.strips_space

    def push(self, token_id: int) -> str:
        return self._stripped(self._utf8.decode(self._pieces.piece(token_id)))

    def flush(self) -> str:
        return self._stripped(self._utf8.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


class _WindowDecoder:
    """For every other tokenizer: decodes a short window twice and takes what the new tokens added.

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
        return self._tokenizer.decode(self._ids, skip_special_tokens=False)[len(before) :]
