"""ControlTokens: texts in which some control tokens count, and others are the tokens of their characters."""

import secrets
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
        self._plain = _PlainTokenizer(backend)
        self.normalizing = backend.normalizer is not None and any(t.normalized for t in self._special.values())
        """True where the tokenizer looks for some of them in a text that its normaliser has changed."""

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
                # Spaces that the token takes in are no part of its text, which a normaliser may have changed.
                at = text.find(token.content, start, end)
                spans.append(ControlSpan(token_id, *((at, at + len(token.content)) if at >= 0 else (start, end))))
        return spans

    def encode(self, text: str, own: Sequence[ControlSpan], *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text in which `own` are control tokens and nothing else is."""
        pieces, at = [], 0
        for span in own:
            pieces += [text[at : span.start], self._plain.names[span.token_id]]
            at = span.end
        return self._plain.encode("".join([*pieces, text[at:]]), add_special_tokens=add_special_tokens)

    def count(self, token_ids: Iterable[int]) -> int:
        """Return how many of `token_ids` are control tokens."""
        return sum(token_id in self._special for token_id in token_ids)


class _PlainTokenizer:
    """A tokenizer that finds control tokens by other names only, which nobody can guess.

    So what surrounds a control token, and spaces that it takes in, are treated as the tokenizer treats them: to take
    the text apart and tokenise the parts would begin a new text after each. It shares the model with the tokenizer that
    it is made of, and all else but the added tokens: it takes milliseconds to make, and next to no memory.
    """

    def __init__(self, backend: tokenizers.Tokenizer):
        self._backend = tokenizers.Tokenizer(backend.model)
        for part in ("normalizer", "pre_tokenizer", "post_processor"):
            if getattr(backend, part) is not None:
                setattr(self._backend, part, getattr(backend, part))
        secret = secrets.token_hex(16)
        added = sorted(backend.get_added_tokens_decoder().items())
        self.names = {token_id: f"<{secret}{token_id}>" for token_id, token in added if token.special}
        contents = {token_id: self.names.get(token_id, token.content) for token_id, token in added}
        self._backend.add_tokens([_renamed(token, contents[token_id]) for token_id, token in added])
        self._ids = {self._backend.token_to_id(content): token_id for token_id, content in contents.items()}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids as the tokenizer has them."""
        (found,) = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        # What the post-processor adds has the tokenizer's ids.
        return [
            token_id if is_from_post_processor else self._ids.get(token_id, token_id)
            for token_id, is_from_post_processor in zip(found.ids, found.special_tokens_mask, strict=True)
        ]


def _renamed(token: AddedToken, name: str) -> AddedToken:
    return AddedToken(
        name,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=False,
    )
