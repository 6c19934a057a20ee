"""The rules of Anthropic's event stream: a reader that checks each event and rebuilds the message."""

import json
from typing import Any

_PIECES = {
    "text": {"text_delta": "text"},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
}
"""Deltas that each kind of block may have, and the field that each brings."""
_EMPTY = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "tool_use": {"type": "tool_use", "input": {}},
}
USAGE = {"input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"}
REASONS = {"end_turn", "max_tokens", "stop_sequence", "tool_use"}


def read_events(data: str) -> list[dict[str, Any]]:
    """The events of a stream; each has the name that its data says. Comments are skipped."""
    assert data.endswith("\n\n")
    events = []
    for frame in data[:-2].split("\n\n"):
        if frame.startswith(":"):
            continue
        first, second = frame.split("\n")
        event = json.loads(second.removeprefix("data: "))
        assert (first, second[:6]) == (f"event: {event['type']}", "data: ")
        events.append(event)
    return events


class Accumulator:
    """Rebuilds the message from the events of a stream that ends well."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {}
        self._inputs: dict[int, str] = {}
        self._open = False
        self._state = "before"

    def read(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        """The whole message."""
        for event in events:
            getattr(self, f"_{event['type']}")(event)
        assert self._state == "stopped"
        return self.message

    def _message_start(self, event: dict[str, Any]) -> None:
        assert self._state == "before"
        message = event["message"]
        assert (message["type"], message["role"], message["content"]) == ("message", "assistant", [])
        assert message["stop_reason"] is None
        assert message["stop_sequence"] is None
        assert message["usage"].keys() >= USAGE
        self.message, self._state = message, "open"

    def _content_block_start(self, event: dict[str, Any]) -> None:
        assert self._state == "open"
        assert not self._open, "a block begins inside another"
        content, block = self.message["content"], event["content_block"]
        assert event["index"] == len(content)
        assert block.items() >= _EMPTY[block["type"]].items(), "a block begins empty"
        if block["type"] == "tool_use":
            assert block["id"].startswith("toolu_")
            self._inputs[event["index"]] = ""
        content.append(dict(block))
        self._open = True

    def _content_block_delta(self, event: dict[str, Any]) -> None:
        assert self._open, "a delta outside of a block"
        assert event["index"] == len(self.message["content"]) - 1
        block, delta = self.message["content"][-1], event["delta"]
        field = _PIECES[block["type"]][delta["type"]]
        assert set(delta) == {"type", field}
        if block["type"] == "tool_use":
            self._inputs[event["index"]] += delta[field]
        else:
            block[field] += delta[field]

    def _content_block_stop(self, event: dict[str, Any]) -> None:
        assert self._open
        assert event["index"] == len(self.message["content"]) - 1
        block = self.message["content"][-1]
        if block["type"] == "tool_use":
            block["input"] = _object(self._inputs[event["index"]])
        else:
            assert block[block["type"]], "a block has nothing"
        self._open = False

    def _message_delta(self, event: dict[str, Any]) -> None:
        assert self._state == "open"
        assert not self._open
        assert event["delta"]["stop_reason"] in REASONS
        assert (event["delta"]["stop_sequence"] is None) == (event["delta"]["stop_reason"] != "stop_sequence")
        self.message |= event["delta"]
        self.message["usage"] = event["usage"]
        self._state = "delta"

    def _message_stop(self, event: dict[str, Any]) -> None:
        assert self._state == "delta"
        assert event == {"type": "message_stop"}
        self._state = "stopped"


def _object(text: str) -> Any:
    """The object that a whole input is; an empty one of an input that was cut off."""
    try:
        return json.loads(text)
    except ValueError:
        return {}


def without_names(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what differs in each reply: its id, and those of its calls."""
    content = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return {**message, "id": None, "content": content}
