"""Fields at the top level of a body that its schema does not name: ignored and reported, refused, or renamed."""

import functools
import logging
import re
from collections.abc import Sequence
from typing import Literal, TypeVar

import msgspec

Wire = TypeVar("Wire", bound=msgspec.Struct)
Policy = Literal["warn", "refuse", "ignore"]

logger = logging.getLogger("jaxinfer.server")

HEADER = "X-Ignored-Fields"
"""The response header that lists fields which had no effect."""

ALIASES = {"repeat_penalty": ("repetition_penalty",), "n_predict": ("max_tokens", "max_completion_tokens")}
"""Names of Ollama and llama.cpp, and ours for the same, the first of which replaces the alias unless one is given."""

_UNLIMITED = {"n_predict": b"-1"}
"""An alias's value for what ours says by its absence."""

MAX_FIELDS = 512
"""Fields of a body that has unknown ones."""

MAX_LISTED = 16
MAX_NAME_CHARS = 64
MAX_LOGGED = 1000
"""Different names that are logged; later ones only appear in the header."""

_UNPRINTABLE = re.compile(r"[^!-~]|,")


class UnknownFields:
    """Decodes bodies under one policy, and logs each ignored name once.

    warn: unknown fields are ignored, logged and listed in the response's header. ignore: neither. refuse: a body
    with one raises msgspec.ValidationError, which names it. Aliases hold under every policy.
    """

    def __init__(self, policy: Policy = "warn"):
        self._policy = policy
        self._logged: set[str] = set()

    @property
    def refuses(self) -> bool:
        """True where a field without effect is an error."""
        return self._policy == "refuse"

    def decode(self, data: bytes | bytearray, kind: type[Wire]) -> tuple[Wire, list[str]]:
        """A body, and the names of its ignored fields, for `report`. kind: forbids unknown fields.

        Raises what msgspec raises.
        """
        try:
            return msgspec.json.decode(data, type=kind), []
        except msgspec.ValidationError:
            fields, ours = _fields(data), _names(kind)
            if fields is None or not fields.keys() - ours:
                raise
        if len(fields) > MAX_FIELDS:
            raise msgspec.ValidationError(f"the body has {len(fields)} fields; at most {MAX_FIELDS} are allowed")
        fields = _renamed(fields, ours)
        known = {name: value for name, value in fields.items() if name in ours}
        kept = fields if self.refuses else known
        body = msgspec.json.decode(msgspec.json.encode(kept), type=kind)
        return body, [name for name, value in fields.items() if name not in known and not _is_null(value)]

    def report(self, names: Sequence[str]) -> list[str]:
        """Logs what had no effect; the names that the header lists."""
        if self._policy != "warn" or not names:
            return []
        for name in map(printable, names):
            if name not in self._logged and len(self._logged) < MAX_LOGGED:
                self._logged.add(name)
                logger.warning("requests have the field %s, which is ignored", name)
        return list(names)


@functools.cache
def _names(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(kind.__struct_fields__)


def _fields(data: bytes | bytearray) -> dict[str, msgspec.Raw] | None:
    """The body's fields, undecoded; None where it is not an object."""
    try:
        return msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        return None


def _is_null(value: msgspec.Raw) -> bool:
    """Null means absent."""
    return bytes(value) == b"null"


def _renamed(fields: dict[str, msgspec.Raw], ours: frozenset[str]) -> dict[str, msgspec.Raw]:
    """Aliases of fields that the body may have under our names; one whose field is given, too, keeps its own."""
    given = {name for name, value in fields.items() if not _is_null(value)}
    renamed = dict(fields)
    for alias, (name, *others) in ALIASES.items():
        if alias in given and name in ours and not given & {name, *others}:
            value = renamed.pop(alias)
            renamed[name] = msgspec.Raw(b"null") if bytes(value) == _UNLIMITED.get(alias) else value
    return renamed


def header_value(names: Sequence[str]) -> str:
    """At most MAX_LISTED names, each of at most MAX_NAME_CHARS printable ASCII characters, and how many more."""
    listed = [printable(name) for name in names[:MAX_LISTED]]
    more = len(names) - len(listed)
    return ", ".join([*listed, f"and {more} more"] if more else listed)


def printable(name: str) -> str:
    """A client's name for a field, fit for a header and a log line."""
    shown = _UNPRINTABLE.sub("?", name[: MAX_NAME_CHARS + 1])
    return shown if len(shown) <= MAX_NAME_CHARS else shown[: MAX_NAME_CHARS - 3] + "..."
