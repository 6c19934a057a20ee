"""Limits of a JSON body's structure, checked on its bytes: objects that nobody wants are never built.

The checks are a few passes in C (count, replace, split), so that they take less time than decoding would.
"""

from collections.abc import Iterator

from jaxinfer.serving.errors import RequestError

MAX_DEPTH = 500
"""Lists and objects inside one another."""

MAX_CONTAINERS = 100_000
"""Lists and objects of a body."""

MAX_KEYS = 200_000
"""Keys of all objects."""

MAX_VALUES = 2_000_000
"""Items of all lists and values of all objects."""

LARGE_BYTES = 32 * 1024
"""Longer bodies are read in a worker process."""

_MANY_CONTAINERS = 2_000
_MANY_ITEMS = 16_384

_OTHER = bytes(set(range(256)) - set(b"[]{},:"))
_SLICE = 1 << 20
_ONE_KIND = bytes.maketrans(b"{}", b"[]")


def is_large(data: bytes | bytearray) -> bool:
    """True for a body that would hold up the event loop for more than a few milliseconds: long, or of many parts.

    Brackets and commas inside strings count, too: what is called large by mistake is only read elsewhere.
    """
    if len(data) > LARGE_BYTES:
        return True
    return max(_begun(data), _ended(data)) > _MANY_CONTAINERS or data.count(b",") > _MANY_ITEMS


def check_structure(data: bytes | bytearray) -> None:
    """Raises RequestError, naming the limit, for a body that is too deep or has too many parts.

    What is no JSON is left to the decoder: up to its first error both see the same lists, objects and strings.
    """
    if len(data) <= LARGE_BYTES and max(_begun(data), _ended(data)) <= MAX_DEPTH:
        return  # too few bytes for too many of anything
    begun, ended, keys, commas, brackets = 0, 0, 0, 0, []
    for part in _skeleton(data):
        begun += _begun(part)
        ended += _ended(part)
        keys += part.count(b":")
        commas += part.count(b",")
        # What only ends is no JSON, but takes as long to be looked at.
        _check("lists and objects", max(begun, ended), MAX_CONTAINERS)
        _check("keys", keys, MAX_KEYS)
        _check("values", begun + commas, MAX_VALUES)
        brackets.append(part.translate(_ONE_KIND, b",:"))
    _check_depth(b"".join(brackets))


def _begun(data: bytes | bytearray) -> int:
    return data.count(b"[") + data.count(b"{")


def _ended(data: bytes | bytearray) -> int:
    return data.count(b"]") + data.count(b"}")


def _skeleton(data: bytes | bytearray) -> Iterator[bytes]:
    """Yield the characters `[]{},:` outside of strings, in slices: a list of all pieces would be large."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    inside = 0
    for start in range(0, len(data), _SLICE):
        pieces = data[start : start + _SLICE].split(b'"')
        yield b"".join(pieces[inside::2]).translate(None, _OTHER)
        inside = (inside + len(pieces) - 1) % 2


def _check_depth(brackets: bytes) -> None:
    # Each pass takes away the innermost pairs, one level of every tree.
    for _ in range(MAX_DEPTH):
        inner = brackets.replace(b"[]", b"")
        if len(inner) == len(brackets):
            break
        brackets = inner
    opened = brackets.count(b"[")
    if opened and (b"[]" in brackets or opened > MAX_DEPTH):
        message = f"the body's JSON is nested too deeply; at most {MAX_DEPTH} levels are allowed"
        raise RequestError(message, code="body_too_complex")


def _check(what: str, count: int, most: int) -> None:
    if count > most:
        raise RequestError(f"the body's JSON has {count} {what}; at most {most} are allowed", code="body_too_complex")
