"""Stop strings: found wherever the text is cut, held back no longer than needed."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.text.stop_strings import StopStrings

SHORT = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)


def char_by_char(text: str, stops: list[str], include: bool) -> tuple[str, bool]:
    """The rule as it is written: the first end of a stop string in the text, the longest of those that end there."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end if include else end - max(map(len, ending))], True
    return text, False


@given(text=SHORT, stops=STOPS, include=st.booleans(), cuts=st.lists(st.integers(0, 12), max_size=6))
def test_the_result_does_not_depend_on_how_the_text_is_cut(
    text: str, stops: list[str], include: bool, cuts: list[int]
) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    search, shown, found = StopStrings(stops, include=include), "", False
    for start, end in itertools.pairwise(edges):
        piece, matched = search.push(text[start:end])
        shown += piece
        found = matched is not None
        if found:
            break
    shown += search.flush()
    assert (shown, found) == char_by_char(text, stops, include)


@given(text=SHORT, stops=STOPS)
def test_what_is_held_back_can_still_become_a_stop_string(text: str, stops: list[str]) -> None:
    search, shown = StopStrings(stops), ""
    for i, char in enumerate(text):
        piece, matched = search.push(char)
        shown += piece
        if matched is not None:
            return
        held = text[len(shown) : i + 1]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


@pytest.mark.smoke
def test_a_stop_string_over_three_pieces() -> None:
    search = StopStrings(["END"])
    assert [search.push(piece) for piece in ("one E", "N", "D two")] == [("one ", None), ("", None), ("", "END")]


def test_what_only_looked_like_a_stop_string_is_shown() -> None:
    search = StopStrings(["END"])
    assert [search.push(piece).text for piece in ("EN", "x", "E")] == ["", "ENx", ""]
    assert search.flush() == "E"
