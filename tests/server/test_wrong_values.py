"""What msgspec complains of, in words that a client's user understands: of real errors of real schemas."""

from typing import Any

import msgspec
import pytest

from jaxinfer.serving.bodies.chat_schema import ChatBody
from jaxinfer.serving.bodies.decode import WrongValue, explain


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        ({"temperature": "hot"}, "temperature: must be a number, or null, not a string", "temperature"),
        ({"stop": 5}, "stop: must be a string or an array, or null, not an integer", "stop"),
        ({"stream": "yes"}, "stream: must be true or false, or null, not a string", "stream"),
        ({"messages": 1}, "messages: must be an array, not an integer", "messages"),
        ({"messages": None}, "messages: must be an array, not null", "messages"),
        ({"messages": [{"content": "a"}]}, "messages[0].role: is missing", "messages[0].role"),
        ({"messages": [{"role": 1}]}, "messages[0].role: must be a string, not an integer", "messages[0].role"),
        ({}, "messages: is missing", "messages"),
        ([1], "the request body must be an object, not an array", None),
        (7, "the request body must be an object, not an integer", None),
    ],
)
def test_errors_name_the_field_and_what_is_allowed(body: Any, message: str, param: str | None) -> None:
    given = {"messages": [{"role": "user", "content": "a"}], **body} if isinstance(body, dict) and body else body
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.json.decode(msgspec.json.encode(given), type=ChatBody)
    assert explain(str(error.value)) == WrongValue(message, param)


def test_an_unknown_field() -> None:
    class Strict(msgspec.Struct, forbid_unknown_fields=True):
        known: int = 0

    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.json.decode(b'{"foo": 1}', type=Strict)
    assert explain(str(error.value)) == WrongValue("foo: is not a known field", "foo")


def test_other_texts_stay_as_they_are() -> None:
    assert explain("the body has 5000 fields") == WrongValue("the body has 5000 fields", None)
    assert explain("Expected `int` >= 0 - at `$.n`") == WrongValue("n: Expected `int` >= 0", "n")
