"""Tokenizer: text to token ids and back, over the `tokenizers` package."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers.processors import TemplateProcessing

from jaxinfer.errors import ModelError, ParameterError, PromptTooLongError
from jaxinfer.folder_files import is_there, read_text
from jaxinfer.text.tokenizer.control_tokens import ControlTokens
from jaxinfer.text.tokenizer.failures import failures
from jaxinfer.text.tokenizer.files import TokenizerFiles
from jaxinfer.text.tokenizer.pieces import Pieces

_CHARS_A_TOKEN, _LEAST_BEGINNING = 8, 4096
"""Characters of a text that are tokenised first, for each token that it may have, and in any case: twice those of
English."""

MOST_READ_SECONDS = 30.0
"""Processor time to read a folder, in which the process answers nobody; 256,000 tokens take two seconds."""

MAX_PROMPT_CHARS = 4_000_000
"""Characters of one text by default: about a million tokens."""


class Tokenizer:
    """The tokenizer of a model folder in Hugging Face layout.

    Reads tokenizer.json, and what other files add to it, by the rules of transformers: README.md has the table.

    config: tokenizer_config.json. special_tokens: the named ones that the folder sets, `bos_token` -> `<s>`. added_ids:
    tokens that are matched as a whole before the text is split, control tokens among them. Raises ModelError.
    """

    def __init__(self, folder: Path, *, max_chars: int = MAX_PROMPT_CHARS):
        self.folder = folder
        self.max_chars = max_chars
        begun = time.thread_time()
        files = TokenizerFiles.of(folder)
        self.config = files.config
        self.special_tokens = files.special_tokens
        self._backend = _load_backend(files.file)
        with failures(lambda error: ModelError(f"{folder / 'tokenizer_config.json'}: its tokens: {error}")):
            self._backend.add_tokens(files.to_add(self._backend.get_added_tokens_decoder()))
            self._backend.encode_special_tokens = bool(files.settings.get("split_special_tokens"))
            self._set_post_processor(files.settings)
            added = self._backend.get_added_tokens_decoder()
        self.added_ids = {token.content: token_id for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        with failures(lambda error: ModelError(f"{folder / 'tokenizer.json'}: {error}")):
            self.pieces = Pieces(self._backend, added)
            self.control_tokens = ControlTokens(self._backend)
        if (seconds := time.thread_time() - begun) > MOST_READ_SECONDS:
            message = f"its tokenizer takes {seconds:.0f} s to read; at most {MOST_READ_SECONDS:.0f} are allowed"
            raise ModelError(f"{folder}: {message}")

    @property
    def vocab_size(self) -> int:
        """Token ids are below this; a model's head may have more rows."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def digest(self) -> str:
        """64 hexadecimal digits of all tokens and their ids: the same where ids mean the same tokens."""
        vocabulary = sorted(self._backend.get_vocab(with_added_tokens=True).items())
        return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()

    @property
    def bos_token_id(self) -> int | None:
        return self._named_id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self._named_id("eos_token")

    @property
    def pad_token_id(self) -> int | None:
        return self._named_id("pad_token")

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        param: str = "prompt",
        parse_special: bool = True,
        most: int | None = None,
    ) -> list[int]:
        """Return token ids of one text; without parse_special control tokens in it are text, too.

        most: as in `encode_batch`. Raises ParameterError, naming `param`, if it is too long or not Unicode.
        """
        (ids,) = self.encode_batch(
            [text], add_special_tokens=add_special_tokens, params=[param], parse_special=parse_special, most=most
        )
        return ids

    def encode_batch(
        self,
        texts: Sequence[str],
        *,
        add_special_tokens: bool = True,
        params: Sequence[str] | None = None,
        parse_special: bool = True,
        most: int | None = None,
    ) -> list[list[int]]:
        """Return token ids of each text; the interpreter lock is free while it runs.

        params: what errors call each text. parse_special: whether control tokens in a text are control tokens, or the
        tokens of their characters. most: a text whose beginning has more tokens is refused without tokenising the rest;
        None: any number. Raises ParameterError.
        """
        for i, text in enumerate(texts):
            param = params[i] if params else f"prompt[{i}]"
            self.check_text(text, param)
            if most is not None:
                self._check_beginning(text, param, most)
        name = params[0] if params else "prompt"
        try:
            with failures(lambda error: ParameterError(name, f"cannot be tokenised: {error}")):
                return self._encode(texts, add_special_tokens=add_special_tokens, parse_special=parse_special)
        except ParameterError:
            self._raise_for_one(texts, params, add_special_tokens, parse_special)
            raise

    def _check_beginning(self, text: str, param: str, most: int) -> None:
        """Raise PromptTooLongError if a beginning of the text has clearly more than `most` tokens.

        A cut changes the tokens next to it, and no others that matter here: an eighth is allowed for it.
        """
        beginning = text[: _CHARS_A_TOKEN * most + _LEAST_BEGINNING]
        if len(beginning) == len(text):
            return
        (ids,) = self._encode([beginning], add_special_tokens=False, parse_special=True)
        if len(ids) > most + most // 8 + 64:
            raise PromptTooLongError(param, most)

    def _encode(self, texts: Sequence[str], *, add_special_tokens: bool, parse_special: bool) -> list[list[int]]:
        if not parse_special:
            return [self.control_tokens.encode(text, [], add_special_tokens=add_special_tokens) for text in texts]
        # NOTE: `encode` holds the interpreter lock all the way; the batch call does not.
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def _raise_for_one(
        self, texts: Sequence[str], params: Sequence[str] | None, add_special_tokens: bool, parse_special: bool
    ) -> None:
        """Raises ParameterError for the first of several texts that cannot be tokenised: a batch hides which."""
        if len(texts) < 2:
            return
        for i, text in enumerate(texts):
            param = params[i] if params else f"prompt[{i}]"
            self.encode(text, add_special_tokens=add_special_tokens, param=param, parse_special=parse_special)

    def check_text(self, text: str, param: str) -> None:
        """Raises ParameterError where a text is not a string, too long, or has lone surrogates."""
        if not isinstance(text, str):
            raise ParameterError(param, f"must be a string, not {type(text).__name__}")
        if len(text) > self.max_chars:
            raise ParameterError(param, f"has {len(text)} characters; at most {self.max_chars} are allowed")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ParameterError(param, f"has a lone surrogate at character {error.start}") from None

    def decode(self, token_ids: np.ndarray | Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence. Ids that are not in the vocabulary give nothing.

        Bytes that belong to no character are one U+FFFD each where tokens are SentencePiece's, as it decodes them.
        The tokenizers package would lose every character whose bytes stand in one run with them, so that one more
        token could change the text before it.
        """
        ids: Sequence[int] = token_ids.tolist() if isinstance(token_ids, np.ndarray) else token_ids
        if self.pieces.sentencepiece:
            skipped = self.special_ids if skip_special_tokens else frozenset()
            return self.pieces.text(token for token in ids if token not in skipped)
        with failures(lambda error: ParameterError("tokens", f"cannot be decoded: {error}")):
            return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        r"""Return a token's name in log-probabilities: its text, or `bytes:\xe2\x82` if it is no whole text."""
        piece = self.pieces.piece(token_id)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)

    def id_to_token(self, token_id: int) -> str | None:
        """A token as the vocabulary writes it, or None."""
        return self._backend.id_to_token(token_id)

    def token_to_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary writes it, or None."""
        return self._backend.token_to_id(token)

    def _named_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self._backend.token_to_id(token)

    def _set_post_processor(self, settings: Mapping[str, Any]) -> None:
        """Lets tokenizer.json decide which tokens stand around a text, unless special_tokens_map.json does."""
        if not settings.keys() & {"add_bos_token", "add_eos_token"}:
            return
        before = self._template_token("bos_token") if settings.get("add_bos_token") else []
        after = self._template_token("eos_token") if settings.get("add_eos_token") else []
        single = [token for token, _ in before] + ["$A"] + [token for token, _ in after]
        self._backend.post_processor = TemplateProcessing(single=single, pair=None, special_tokens=before + after)

    def _template_token(self, name: str) -> list[tuple[str, int]]:
        token_id = self._named_id(name)
        return [] if token_id is None else [(self.special_tokens[name], token_id)]


def _load_backend(file: Path) -> tokenizers.Tokenizer:
    if not is_there(file):
        raise ModelError(f"{file} is absent; a model folder needs tokenizer.json")
    text = read_text(file)
    with failures(lambda error: ModelError(f"{file} is not a tokenizer that the tokenizers package can read: {error}")):
        backend = tokenizers.Tokenizer.from_str(text)
    backend.no_truncation()
    backend.no_padding()
    return backend
