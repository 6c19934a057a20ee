"""What a body's JSON may hold, found on its bytes, against a walk over what it decodes to."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.serving.bodies import structure
from jaxinfer.serving.bodies.structure import check_structure, is_large
from jaxinfer.serving.errors import RequestError

# Brackets, quotes and backslashes inside of strings are what a scan of bytes could take for something else.
TEXTS = st.text(alphabet='[]{},:"\\/a é\n', max_size=6)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inside: st.one_of(st.lists(inside, max_size=4), st.dictionaries(TEXTS, inside, max_size=4)),
    max_leaves=12,
)


def walk(value: Any) -> tuple[int, int, int]:
    """Depth, lists and objects, keys."""
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    if inside is None:
        return 0, 0, 0
    parts = [walk(part) for part in inside]
    depth = 1 + max((part[0] for part in parts), default=0)
    keys = (len(value) if isinstance(value, dict) else 0) + sum(part[2] for part in parts)
    return depth, 1 + sum(part[1] for part in parts), keys


def refused(data: bytes) -> bool:
    try:
        check_structure(data)
    except RequestError:
        return True
    return False


@given(value=VALUES, ascii=st.booleans(), limits=st.tuples(*[st.integers(0, 6)] * 3), slice=st.integers(1, 9))
def test_a_body_is_refused_where_a_walk_finds_too_much(
    value: Any, ascii: bool, limits: tuple[int, int, int], slice: int
) -> None:
    data = json.dumps(value, ensure_ascii=ascii).encode()
    too_much = any(found > most for found, most in zip(walk(value), limits, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        for name, most in zip(("MAX_DEPTH", "MAX_CONTAINERS", "MAX_KEYS"), limits, strict=True):
            patch.setattr(structure, name, most)
        patch.setattr(structure, "LARGE_BYTES", 0)
        patch.setattr(structure, "_SLICE", slice)
        assert refused(data) == too_much


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"[" * 501 + b"]" * 501, "nested too deeply; at most 500"),
        (b"[" * 5_000, "nested too deeply; at most 500"),
        (b'{"a":' * 501 + b"1" + b"}" * 501, "nested too deeply; at most 500"),
        (b"[" + b"[]," * 100_000 + b"[]]", "lists and objects; at most 100000"),
        (b"{" + b'"a":1,' * 200_000 + b'"a":1}', "200001 keys; at most 200000"),
        (b"[" + b"1," * 2_000_000 + b"1]", "2000001 values; at most 2000000"),
    ],
)
def test_an_error_names_the_limit(body: bytes, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        check_structure(body)


@pytest.mark.parametrize(
    "body", [b"[" * 500 + b"]" * 500, b'{"a": "' + b"[{,:" * 100_000 + b'"}', b'["' + b'\\"[' * 150_000 + b'"]']
)
def test_what_is_within_the_limits_or_in_strings_passes(body: bytes) -> None:
    check_structure(body)


def test_brackets_that_only_end_count() -> None:
    """Each pass over them takes as long as over those that begin."""
    body = b"[" * 1_990 + b"]" * 260_000
    assert is_large(body)
    with pytest.raises(RequestError, match="at most 100000"):
        check_structure(body)


def test_long_bodies_and_those_of_many_parts_are_large() -> None:
    assert is_large(b'{"prompt": "' + b"a" * 2**16 + b'"}')
    assert is_large(b"[" + b"[]," * 2_000 + b"[]]")
    assert is_large(b"[" + b"1," * 20_000 + b"1]")
    assert not is_large(b'{"prompt": "' + b"a" * 2**14 + b'"}')
