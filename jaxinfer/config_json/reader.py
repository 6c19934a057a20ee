"""ConfigReader: reads a config.json such that each of its keys is understood, ignored on purpose, or an error."""

import math
from collections.abc import Mapping
from typing import Any

from jaxinfer.config_json.ignored_keys import IGNORED_KEYS, WINDOW_KEYS
from jaxinfer.config_json.unknown_keys import UnknownKeys
from jaxinfer.errors import ModelError, quoted, shortened

_MISSING: Any = object()
_LARGEST = 2**63 - 1


class ConfigReader:
    """The keys of one config.json; remembers which were read, so that `finish` can decide on the rest.

    unknown: decides; the readers of nested objects share it.
    """

    def __init__(self, raw: Mapping[str, Any], where: str = "config.json", unknown: UnknownKeys | None = None):
        self._raw = raw
        self.where = where
        self.unknown = unknown or UnknownKeys()
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self._raw.get(name) is not None

    @property
    def names(self) -> tuple[str, ...]:
        """The keys that are there and not null."""
        return tuple(name for name in self._raw if name in self)

    def get(self, name: str, default: Any = None) -> Any:
        """The value as it stands; `default` where the key is absent or null."""
        self._read.add(name)
        value = self._raw.get(name)
        return default if value is None else value

    def integer(self, name: str, default: Any = _MISSING) -> int:
        """An integer; `default` where absent."""
        value = self._needed(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, f"must be an integer, not {quoted(value)}")
        if abs(value) > _LARGEST:
            raise self.error(name, f"is {quoted(value)}; integers of 64 bits are supported")
        return value

    def nullable_integer(self, name: str, default: int) -> int | None:
        """An integer; None where the key is null, `default` where it is absent."""
        return None if name in self._raw and self.get(name) is None else self.integer(name, default)

    def number(self, name: str, default: Any = _MISSING) -> float:
        """An integer or float; `default` where absent."""
        value = self._needed(name, default)
        if not _is_number(value):
            raise self.error(name, f"must be a number, not {quoted(value)}")
        return float(value)

    def nullable_number(self, name: str, default: float | None) -> float | None:
        """An integer or float; None where the key is null, `default` where it is absent."""
        if name in self._raw or default is None:
            return self.number(name) if name in self else self.get(name)
        return default

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of integers or floats."""
        values = self._needed(name, _MISSING)
        if not isinstance(values, list) or not all(map(_is_number, values)):
            raise self.error(name, f"must be a list of numbers, not {quoted(values)}")
        return tuple(map(float, values))

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean; `default` where absent."""
        value = self._needed(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"must be true or false, not {quoted(value)}")
        return value

    def choice(self, name: str, choices: Mapping[str, Any], default: Any = _MISSING) -> Any:
        """Return the value in `choices` for the key's text."""
        value = self._needed(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self.error(name, f"{quoted(value)} is not supported; supported are {', '.join(sorted(choices))}")
        return choices[value]

    def token_ids(self, name: str) -> tuple[int, ...]:
        """One token id or a list of them; empty where absent."""
        value = self.get(name, [])
        ids = value if isinstance(value, list) else [value]
        if any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
            raise self.error(name, f"must be a token id or a list of them, not {quoted(value)}")
        if any(i >= 2**31 for i in ids):
            raise self.error(name, f"has the id {quoted(max(ids))}; ids are below 2**31")
        return tuple(i for i in ids if i >= 0)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; empty where absent."""
        values = self.get(name, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self.error(name, f"must be a list of texts, not {quoted(values)}")
        return tuple(values)

    def mapping(self, name: str) -> "ConfigReader | None":
        """The fields of a nested object; None where absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, f"must be an object, not {quoted(value)}")
        return self.inside(value, name)

    def inside(self, raw: Mapping[str, Any], name: str) -> "ConfigReader":
        """A reader of an object that is called `name` and stands in this one."""
        return ConfigReader(raw, f"{self.where}: {name}", self.unknown)

    def only(self, name: str, *allowed: Any) -> None:
        """Refuses every value of a key but the allowed ones; absent is allowed."""
        value = self.get(name)
        if value is not None and value not in allowed:
            raise self.error(name, f"{quoted(value)} is not supported; only {' or '.join(map(repr, allowed))} is")

    def default(self, name: str, value: Any) -> None:
        """Gives a key its family's value where it is absent or null."""
        if name not in self:
            self._raw = {**self._raw, name: value}

    def finish(self, ignored: frozenset[str] = IGNORED_KEYS) -> None:
        """Raises ModelError where a key was not read, is not ignored on purpose and might change the numbers.

        Null values pass, and keys of which `UnknownKeys` says so.
        """
        inside = self.where.split(": ")[1:]
        if self._raw.get("use_sliding_window") is False:
            ignored = ignored | WINDOW_KEYS
        for name, value in self._raw.items():
            known = value is None or name in self._read or name in ignored
            if not known and not self.unknown.passes(".".join([*inside, name]), name, value):
                message = "is unknown, and might change what the model computes; --ignore-config-keys lets it pass"
                raise self.error(name, message)

    def error(self, name: str, message: str) -> ModelError:
        """An error that names file and field."""
        return ModelError(f"{self.where}: {shortened(name)} {message}")

    def _needed(self, name: str, default: Any) -> Any:
        value = self.get(name, default)
        if value is _MISSING:
            raise self.error(name, "is missing")
        return value


def _is_number(value: Any) -> bool:
    """Python's JSON knows NaN and Infinity too; no field may be either."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)
