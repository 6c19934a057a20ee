"""ControlTokens: texts in which some control tokens count, and others are the tokens of their characters."""

import secrets
import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import tokenizers
from tokenizers import AddedToken


class ControlSpan(NamedTuple):
    """A control token in a text: its characters are from `start` to before `end`."""

    token_id: int
    start: int
    end: int


class ControlTokens:
    """The tokens that a tokenizer calls special. Safe to use from several threads."""

    def __init__(self, backend: tokenizers.Tokenizer):
        self._backend = backend
        self._special = {token_id: t for token_id, t in backend.get_added_tokens_decoder().items() if t.special}
        self._lock = threading.Lock()
        self._plain: _PlainTokenizer | None = None

    def texts(self, token_ids: Iterable[int]) -> frozenset[str]:
        """The texts of those of `token_ids` that are control tokens."""
        return frozenset(self._special[token_id].content for token_id in self._special.keys() & set(token_ids))

    def spans(self, text: str) -> list[ControlSpan]:
        """The control tokens that the tokenizer finds in a text, in their order."""
        (found,) = self._backend.encode_batch([text], add_special_tokens=False)
        spans = []
        for token_id, (start, end) in zip(found.ids, found.offsets, strict=True):
            token = self._special.get(token_id)
            if token is not None:
                # Spaces that the token takes in are no part of its text.
                at = max(start, text.find(token.content, start, end))
                spans.append(ControlSpan(token_id, at, min(end, at + len(token.content))))
        return spans

    def encode(self, text: str, own: Sequence[ControlSpan], *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text in which `own` are control tokens and nothing else is."""
        plain, pieces, at = self._plain_tokenizer(), [], 0
        for span in own:
            pieces += [text[at : span.start], plain.names[span.token_id]]
            at = span.end
        (found,) = plain.backend.encode_batch(["".join([*pieces, text[at:]])], add_special_tokens=add_special_tokens)
        return [plain.ids.get(token_id, token_id) for token_id in found.ids]

    def count(self, token_ids: Iterable[int]) -> int:
        """How many of `token_ids` are control tokens."""
        return sum(token_id in self._special for token_id in token_ids)

    def _plain_tokenizer(self) -> "_PlainTokenizer":
        with self._lock:  # it takes a second and the memory of another tokenizer, so it is made when it is needed
            if self._plain is None:
                self._plain = _PlainTokenizer(self._backend, self._special)
            return self._plain


class _PlainTokenizer:
    """A copy of a tokenizer that finds control tokens by other names only, which nobody can guess.

    So what surrounds a control token, and spaces that it takes in, are treated as the tokenizer treats them: to take
    the text apart and tokenise the parts would begin a new text after each.
    """

    def __init__(self, backend: tokenizers.Tokenizer, special: dict[int, AddedToken]):
        self.backend = tokenizers.Tokenizer.from_str(backend.to_str())
        secret = secrets.token_hex(16)
        self.names = {token_id: f"<{secret}{token_id}>" for token_id in special}
        renamed = [_renamed(token, self.names[token_id]) for token_id, token in special.items()]
        self.backend.add_tokens(renamed)
        self.backend.encode_special_tokens = True
        self.ids = {self.backend.token_to_id(name): token_id for token_id, name in self.names.items()}


def _renamed(token: AddedToken, name: str) -> AddedToken:
    return AddedToken(
        name,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=False,
    )
