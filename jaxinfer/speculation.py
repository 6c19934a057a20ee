"""Speculation: what `speculative_config` asks for, in the form that vLLM has for it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxinfer.errors import ParameterError, shortened

_SETTING = "speculative_config"
_MOST_TOKENS = 16
_MOST_LENGTH = 32
Method = Literal["ngram", "draft_model", "eagle3"]
_METHODS: dict[str, Method] = {
    "ngram": "ngram", "[ngram]": "ngram", "prompt_lookup": "ngram", "draft_model": "draft_model", "eagle3": "eagle3",
}  # fmt: skip
_OTHER_METHODS = (
    "eagle", "medusa", "mtp", "mlp_speculator", "suffix", "deepseek_mtp", "dflash",
)  # fmt: skip
_NUMBERS = {
    "num_speculative_tokens": (1, _MOST_TOKENS),
    "prompt_lookup_min": (1, _MOST_LENGTH),
    "prompt_lookup_max": (1, _MOST_LENGTH),
}
_OF_NGRAMS = ("prompt_lookup_min", "prompt_lookup_max")
_DEFAULT_TOKENS, _DEFAULT_SHORTEST, _DEFAULT_LONGEST = 4, 2, 5


@dataclass(frozen=True)
class Speculation:
    """Drafts of a row's next tokens, which a step checks all at once.

    tokens: drafts of a row, at most. method: who drafts. `ngram` (Saxena, "Prompt Lookup Decoding", 2023): what
    followed the row's last tokens, `shortest` to `longest` of them, where they stood before. `draft_model` (Leviathan
    et al., arXiv:2211.17192): a smaller model of the same vocabulary, of the folder or hub id `model`. `eagle3` (Li et
    al., arXiv:2503.01840): a head of the folder or hub id `model`, which reads the target's hidden states.
    """

    tokens: int
    shortest: int = _DEFAULT_SHORTEST
    longest: int = _DEFAULT_LONGEST
    method: Method = "ngram"
    model: str | None = field(default=None, repr=False)  # programs do not follow from its place

    @property
    def drafter(self) -> str:
        """Who drafts, for people."""
        return self.model or "n-grams"


def read_speculation(text: str | None) -> Speculation | None:
    """text: a JSON object. Raises ParameterError, which names the key and what is allowed."""
    if text is None:
        return None
    values = _object(text)
    method = _method(values)
    numbers = {name: _number(values, name) for name in _NUMBERS}
    tokens = numbers["num_speculative_tokens"] or _DEFAULT_TOKENS
    if method != "ngram":
        return Speculation(tokens, method=method, model=_model(values))
    shortest, longest = numbers["prompt_lookup_min"], numbers["prompt_lookup_max"]
    if shortest is not None and longest is not None and shortest > longest:
        raise _error(f"prompt_lookup_min, {shortest}, is more than prompt_lookup_max, {longest}")
    longest = longest or max(_DEFAULT_LONGEST, shortest or 0)
    return Speculation(
        tokens=tokens,
        shortest=shortest or min(_DEFAULT_SHORTEST, longest),
        longest=longest,
    )


def _object(text: str) -> Mapping[str, Any]:
    if not isinstance(text, str):
        raise _error(f"must be the text of a JSON object, as {_example()}, not {type(text).__name__}")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _error(f"is no JSON ({error}); give an object, as {_example()}") from None
    if not isinstance(values, dict):
        raise _error(f"must be a JSON object, as {_example()}")
    return values


def _method(values: Mapping[str, Any]) -> Method:
    """A `model` alone drafts. Raises where a key is not known, or not of this method."""
    known = ("method", "model", *_NUMBERS)
    if unknown := [name for name in values if name not in known]:
        raise _error(f"{unknown[0]} is not known; {', '.join(known)} are")
    asked = values.get("method") or ("draft_model" if values.get("model") is not None else None)
    if asked in _OTHER_METHODS:
        raise _error(f"method {asked} is not supported yet; ngram, draft_model and eagle3 are")
    if not isinstance(asked, str) or asked not in _METHODS:
        raise _error(f"method must be ngram, draft_model or eagle3, not {_shown(asked)}")
    method = _METHODS[asked]
    others = ("model",) if method == "ngram" else _OF_NGRAMS
    if strange := [name for name in others if values.get(name) is not None]:
        raise _error(f"{strange[0]} means nothing to method {asked}; leave it out")
    return method


def _model(values: Mapping[str, Any]) -> str:
    model = values.get("model")
    if not isinstance(model, str) or not model:
        raise _error(f"model must be a folder or a hub id, not {_shown(model)}")
    return model


def _number(values: Mapping[str, Any], name: str) -> int | None:
    value, (least, most) = values.get(name), _NUMBERS[name]
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _error(f"{name} must be a whole number, {least} to {most}, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    """Return a value as JSON, in at most 160 characters."""
    try:
        return shortened(json.dumps(value))
    except RecursionError:
        return "deeply nested JSON"


def _example() -> str:
    return json.dumps({"method": "ngram", "num_speculative_tokens": _DEFAULT_TOKENS})


def _error(message: str) -> ParameterError:
    return ParameterError(_SETTING, message)
