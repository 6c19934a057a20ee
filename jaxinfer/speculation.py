"""Speculation: what `speculative_config` asks for, in the form that vLLM has for it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxinfer.errors import ParameterError

_SETTING = "speculative_config"
_MOST_TOKENS = 16
_MOST_LENGTH = 32
_METHODS = {"ngram": "ngram", "[ngram]": "ngram", "prompt_lookup": "ngram"}
_OTHER_METHODS = (
    "draft_model", "eagle", "eagle3", "medusa", "mtp", "mlp_speculator", "suffix", "deepseek_mtp", "dflash",
)  # fmt: skip
_NUMBERS = {
    "num_speculative_tokens": (1, _MOST_TOKENS),
    "prompt_lookup_min": (1, _MOST_LENGTH),
    "prompt_lookup_max": (1, _MOST_LENGTH),
}
_DEFAULT_TOKENS, _DEFAULT_SHORTEST, _DEFAULT_LONGEST = 4, 2, 5


@dataclass(frozen=True)
class Speculation:
    """Drafts of a row's next tokens, which a step checks all at once.

    tokens: drafts of a row, at most. shortest, longest: tokens of the n-gram that is looked for in what the row has
    said and was told (`ngram`: Saxena, "Prompt Lookup Decoding", 2023); what followed it is drafted.
    """

    tokens: int
    shortest: int
    longest: int


def read_speculation(text: str | None) -> Speculation | None:
    """text: a JSON object. Raises ParameterError, which names the key and what is allowed."""
    if text is None:
        return None
    values = _object(text)
    _check_keys(values)
    numbers = {name: _number(values, name) for name in _NUMBERS}
    shortest, longest = numbers["prompt_lookup_min"], numbers["prompt_lookup_max"]
    if shortest is not None and longest is not None and shortest > longest:
        raise _error(f"prompt_lookup_min, {shortest}, is more than prompt_lookup_max, {longest}")
    longest = longest or max(_DEFAULT_LONGEST, shortest or 0)
    return Speculation(
        tokens=numbers["num_speculative_tokens"] or _DEFAULT_TOKENS,
        shortest=shortest or min(_DEFAULT_SHORTEST, longest),
        longest=longest,
    )


def _object(text: str) -> Mapping[str, Any]:
    if not isinstance(text, str):
        raise _error(f"must be the text of a JSON object, as {_example()}, not {type(text).__name__}")
    try:
        values = json.loads(text)
    except ValueError as error:
        raise _error(f"is no JSON ({error}); give an object, as {_example()}") from None
    if not isinstance(values, dict):
        raise _error(f"must be a JSON object, as {_example()}")
    return values


def _check_keys(values: Mapping[str, Any]) -> None:
    known = ("method", *_NUMBERS)
    if unknown := [name for name in values if name not in known]:
        raise _error(f"{unknown[0]} is not known; {', '.join(known)} are")
    method = values.get("method")
    if method in _OTHER_METHODS:
        raise _error(f"method {method} is not supported yet; ngram is")
    if not isinstance(method, str) or method not in _METHODS:
        raise _error(f"method must be ngram, not {json.dumps(method)}")


def _number(values: Mapping[str, Any], name: str) -> int | None:
    value, (least, most) = values.get(name), _NUMBERS[name]
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _error(f"{name} must be a whole number, {least} to {most}, not {json.dumps(value)}")
    return value


def _example() -> str:
    return json.dumps({"method": "ngram", "num_speculative_tokens": _DEFAULT_TOKENS})


def _error(message: str) -> ParameterError:
    return ParameterError(_SETTING, message)
