"""Streams of /v1/responses: read as bytes, and joined to a response as a client joins them."""

import json
from typing import Any

import aiohttp

Events = list[tuple[str, dict[str, Any]]]


async def stream(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Events:
    """The events of a streamed response, each with the name of its line `event:`."""
    async with session.post(f"{url}/v1/responses", json={**body, "stream": True}) as answer:
        assert answer.status == 200, await answer.text()
        blocks = (await answer.read()).decode().split("\n\n")
    events: Events = []
    for block in filter(None, blocks):
        name, data = block.split("\n")
        events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


def joined(events: Events) -> dict[str, Any]:
    """The response that the events before the last one add up to, its output made of deltas alone."""
    output: list[dict[str, Any]] = []
    for name, event in events[2:-1]:
        if name == "response.output_item.added":
            assert event["output_index"] == len(output)
            assert not output or output[-1]["status"] == "completed", "an item begins before the last one has ended"
            output.append(event["item"])
            assert event["item"]["status"] == "in_progress"
            continue
        item = output[-1]
        if name == "response.output_item.done":
            item["status"] = event["item"]["status"]
            assert event["item"] == item
            continue
        assert (event["item_id"], event["output_index"]) == (item["id"], len(output) - 1)
        _join(name, event, item)
    return {**events[0][1]["response"], "output": output}


def _join(name: str, event: dict[str, Any], item: dict[str, Any]) -> None:
    call = {"function_call_arguments": "arguments", "custom_tool_call_input": "input"}
    kind, _, what = name.removeprefix("response.").partition(".")
    if kind in call:
        item[call[kind]] += event.get("delta", "")
        assert what == "delta" or event[call[kind]] == item[call[kind]]
        return
    assert event["content_index"] == 0
    if name == "response.content_part.added":
        item["content"].append(event["part"])
        return
    (part,) = item["content"]
    assert part["type"] == {"message": "output_text", "reasoning": "reasoning_text"}[item["type"]]
    if name == "response.content_part.done":
        assert event["part"] == part
    elif what == "delta":
        part["text"] += event["delta"]
        if kind == "output_text":
            part["logprobs"] += event["logprobs"]
    else:
        assert event["text"] == part["text"]
        assert kind != "output_text" or event["logprobs"] == part["logprobs"]


def check_frame(events: Events) -> None:
    """Events are numbered, named as they are called, and begin and end as a stream does."""
    assert [event["sequence_number"] for _, event in events] == list(range(len(events)))
    assert all(name == event["type"] for name, event in events)
    assert [name for name, _ in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1][0] in ("response.completed", "response.incomplete", "response.failed")
