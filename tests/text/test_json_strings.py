"""Strings of JSON that arrives: told apart as a character after another would tell, and each read once."""

from random import Random

import pytest

from jaxinfer.text.answer import json_strings
from jaxinfer.text.answer.calls.json_calls import HERMES
from jaxinfer.text.answer.json_strings import JsonStrings
from jaxinfer.text.answer.parser import AnswerFormat, AnswerParser


def model(text: str) -> bool | None:
    """Whether the end of a text is inside of a string, character by character; None where it is no JSON."""
    inside = escaped = False
    for each in text:
        if inside and each < " ":
            return None
        if inside and not escaped and each == "\\":
            escaped = True
            continue
        if each == '"' and not escaped:
            inside = not inside
        escaped = False
    return inside


@pytest.mark.parametrize("seed", range(20))
def test_as_a_character_after_another_tells(seed: int) -> None:
    draw = Random(seed)
    for _ in range(200):
        text = "".join(draw.choice(['"', "\\", "a", "é", ":", "\n" if draw.random() < 0.1 else "b"]) for _ in range(30))
        asked = sorted(draw.sample(range(31), 6))
        strings = JsonStrings(0)
        for end in asked:
            # Of what has not come yet nothing follows.
            told = strings.is_inside(text[: draw.randint(end, 30)], end)
            assert told == model(text[:end]), (text, asked, end)
            if told is None:
                break


def test_a_call_full_of_tags_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not from its beginning for each of them."""
    read = 0

    class Counting:
        def __init__(self, pattern):
            self.pattern = pattern

        def match(self, text: str, at: int, end: int):
            nonlocal read
            found = self.pattern.match(text, at, end)
            read += found.end() - at
            return found

    for name in ("_OUTSIDE", "_INSIDE"):
        monkeypatch.setattr(json_strings, name, Counting(getattr(json_strings, name)))
    text = '<tool_call>{"arguments": {"a": "' + "</tool_call>" * 500 + '"}, "name": "f"}</tool_call>'
    parts = AnswerParser(AnswerFormat(calls=HERMES)).push(text)
    assert [part.tool_call.name for part in parts if part.tool_call] == ["f"]
    assert 0 < read <= 2 * len(text)
