"""Pieces: the bytes that a token adds to a text, for the tokenizers whose text is the sum of its tokens."""

import codecs
import json
from collections.abc import Iterable
from typing import Any

from tokenizers import AddedToken, Tokenizer

_METASPACE = "\u2581"
_EACH_BYTE = "jaxinfer.each_byte"


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


# Python's own "replace" writes one U+FFFD for all bytes of half a character.
codecs.register_error(_EACH_BYTE, _replace_each_byte)


class Pieces:
    """Bytes of each token, looked up once.

    exact: the text of a sequence is the UTF-8 text of its tokens' bytes, so that a stream can be
    decoded byte by byte. True for byte-level BPE and for SentencePiece's decoders; where it is False,
    `piece` still gives the token's own text.
    sentencepiece: tokens are SentencePiece's, and so is what becomes of bytes that are not UTF-8.
    strips_space: the decoder drops one space at the very start of a text.
    utf8_errors: what becomes of bytes that belong to no character, as a name for `bytes.decode`. Of SentencePiece's
    each is one U+FFFD; byte-level BPE has one for a whole half of a character.
    """

    def __init__(self, backend: Tokenizer, added: dict[int, AddedToken]):
        self._backend = backend
        self._added = {token_id: token.content for token_id, token in added.items()}
        self._cache: dict[int, bytes] = {}
        steps = _decoder_steps(backend)
        kinds = [step["type"] for step in steps]
        self._byte_level = kinds == ["ByteLevel"]
        self.sentencepiece = _is_sentencepiece(steps)
        self.exact = self._byte_level or self.sentencepiece
        self.strips_space = "Strip" in kinds
        self.utf8_errors = _EACH_BYTE if self.sentencepiece else "replace"

    def piece(self, token_id: int) -> bytes:
        """The bytes of a token; none for an id outside the vocabulary."""
        found = self._cache.get(token_id)
        if found is None:
            found = self._cache[token_id] = self._make(token_id)
        return found

    def text(self, token_ids: Iterable[int]) -> str:
        """The text of a whole sequence, where `exact`."""
        text = b"".join(map(self.piece, token_ids)).decode("utf-8", self.utf8_errors)
        return text.removeprefix(" ") if self.strips_space else text

    def _make(self, token_id: int) -> bytes:
        token = self._added.get(token_id) or self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._byte_level:
            return _byte_level_bytes(token)
        if self.sentencepiece:
            return _sentencepiece_bytes(token)
        return self._backend.decode([token_id], skip_special_tokens=False).encode()


def _decoder_steps(backend: Tokenizer) -> list[dict[str, Any]]:
    decoder = json.loads(backend.to_str())["decoder"] if backend.decoder is not None else None
    if decoder is None:
        return []
    return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]


def _is_sentencepiece(steps: list[dict[str, Any]]) -> bool:
    kinds = [step["type"] for step in steps]
    if kinds[:3] != ["Replace", "ByteFallback", "Fuse"] or kinds[3:] not in ([], ["Strip"]):
        return False
    replace = steps[0].get("pattern") == {"String": _METASPACE} and steps[0].get("content") == " "
    strip = all((s.get("content"), s.get("start"), s.get("stop")) == (" ", 1, 0) for s in steps[3:])
    return replace and strip


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: itself where it is printable, else a letter from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _byte_level_bytes(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[char] for char in token])
    except KeyError:
        return token.encode()


def _sentencepiece_bytes(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.replace(_METASPACE, " ").encode()
