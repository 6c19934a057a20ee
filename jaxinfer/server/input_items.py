"""Pages of the items that a stored response answers."""

from typing import Any

import msgspec

from jaxinfer.server.responses_schema import InputItems
from jaxinfer.serving.errors import RequestError
from jaxinfer.serving.response_store import StoredResponse

MAX_ITEMS = 100
"""Items of a page."""

_PREFIXES = {
    "reasoning": "rs", "function_call": "fc", "function_call_output": "fco", "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}  # fmt: skip


def page_of_input(stored: StoredResponse, *, after: str | None, limit: str, order: str) -> InputItems:
    """A page as a query asks for it: at most `limit` items behind the one with the id `after`. Raises RequestError."""
    if order not in ("asc", "desc"):
        raise RequestError(f"order: {order[:64]!r} must be asc or desc", param="order")
    most = _limit(limit)
    items = _items(stored)
    if order == "desc":
        items.reverse()
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise RequestError(f"after: {after[:64]!r} is none of the items", param="after")
        items = items[ids.index(after) + 1 :]
    page = items[:most]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return InputItems(page, first, last, len(items) > most)


def _limit(given: str) -> int:
    if not (given.isascii() and given.isdigit() and len(given) < 5 and 1 <= int(given) <= MAX_ITEMS):
        raise RequestError(f"limit: {given[:64]!r} must be a number from 1 to {MAX_ITEMS}", param="limit")
    return int(given)


def _items(stored: StoredResponse) -> list[dict[str, Any]]:
    """All items, the oldest first. One that came without an id has one of the response's id and its number."""
    raw = [item for chunk in (*stored.history, stored.input) for item in chunk.items]
    name = stored.id.removeprefix("resp_")
    return [_listed(item, f"{name}{i}") for i, item in enumerate(raw)]


def _listed(raw: bytes, name: str) -> dict[str, Any]:
    """An item in the form in which all are listed. name: what its id is made of if it has none."""
    item = msgspec.json.decode(raw)
    kind = item["type"] = item.get("type") or "message"
    item["id"] = item.get("id") or f"{_PREFIXES.get(kind, 'msg')}_{name}"
    if kind == "message":
        item["status"] = item.get("status") or "completed"
        if isinstance(item.get("content"), str):
            part = "output_text" if item.get("role") == "assistant" else "input_text"
            item["content"] = [{"type": part, "text": item["content"]}]
    return item
