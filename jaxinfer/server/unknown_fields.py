"""Fields at the top level of a body that its schema does not name: ignored and reported, refused, or renamed."""

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

ALIASES = {"repeat_penalty": "repetition_penalty", "n_predict": "max_tokens"}
"""Names of Ollama and llama.cpp, and ours for the same. Where both are given, ours holds."""

_UNLIMITED = {"n_predict": b"-1"}
"""An alias's value for what ours says by its absence."""

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

    def decode(self, data: bytes, kind: type[Wire]) -> tuple[Wire, list[str]]:
        """A body, and the names of its ignored fields that are to be reported. kind: forbids unknown fields.

        Raises what msgspec raises.
        """
        try:
            return msgspec.json.decode(data, type=kind), []
        except msgspec.ValidationError:
            fields = self._fields(data)
            if fields is None or not fields.keys() - set(kind.__struct_fields__):
                raise
        fields = _renamed(fields)
        known = {name: value for name, value in fields.items() if name in kind.__struct_fields__}
        kept = fields if self.refuses else known
        body = msgspec.json.decode(msgspec.json.encode(kept), type=kind)
        # Null means absent, here as in fields that are known.
        return body, self.report([name for name in fields if name not in known and bytes(fields[name]) != b"null"])

    def report(self, names: Sequence[str]) -> list[str]:
        """Logs what had no effect; the names that the header lists."""
        if self._policy != "warn":
            return []
        for name in map(printable, names):
            if name not in self._logged and len(self._logged) < MAX_LOGGED:
                self._logged.add(name)
                logger.warning("requests have the field %s, which is ignored", name)
        return list(names)

    @staticmethod
    def _fields(data: bytes) -> dict[str, msgspec.Raw] | None:
        """The body's fields, undecoded; None where it is not an object."""
        try:
            return msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        except msgspec.ValidationError:
            return None


def _renamed(fields: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """Aliases under our names; one whose field is there, too, keeps its own."""
    renamed: dict[str, msgspec.Raw] = {}
    for name, value in fields.items():
        ours = ALIASES.get(name)
        if ours is None or ours in fields:
            renamed[name] = value
        else:
            renamed[ours] = msgspec.Raw(b"null") if bytes(value) == _UNLIMITED.get(name) else value
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
