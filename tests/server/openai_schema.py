"""OpenAI's own schemas of what its API answers."""

import functools
import json
from typing import Any

import jsonschema
from jsonschema.exceptions import best_match

from tests.material import material

EVENTS = {
    "response.created": "ResponseCreatedEvent",
    "response.in_progress": "ResponseInProgressEvent",
    "response.completed": "ResponseCompletedEvent",
    "response.incomplete": "ResponseIncompleteEvent",
    "response.failed": "ResponseFailedEvent",
    "response.output_item.added": "ResponseOutputItemAddedEvent",
    "response.output_item.done": "ResponseOutputItemDoneEvent",
    "response.content_part.added": "ResponseContentPartAddedEvent",
    "response.content_part.done": "ResponseContentPartDoneEvent",
    "response.output_text.delta": "ResponseTextDeltaEvent",
    "response.output_text.done": "ResponseTextDoneEvent",
    "response.reasoning_text.delta": "ResponseReasoningTextDeltaEvent",
    "response.reasoning_text.done": "ResponseReasoningTextDoneEvent",
    "response.function_call_arguments.delta": "ResponseFunctionCallArgumentsDeltaEvent",
    "response.function_call_arguments.done": "ResponseFunctionCallArgumentsDoneEvent",
    "response.custom_tool_call_input.delta": "ResponseCustomToolCallInputDeltaEvent",
    "response.custom_tool_call_input.done": "ResponseCustomToolCallInputDoneEvent",
    "error": "ResponseErrorEvent",
}
"""Schemas of events, by the name of the event."""


@functools.cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    components = json.loads(material("openai", "openapi_serving_subset.json").read_text())["components"]
    return jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": components})


def check(name: str, value: Any) -> None:
    """Fails where a value is not what OpenAI calls `name`; skips where its schemas are absent."""
    error = best_match(_validator(name).iter_errors(value))
    assert error is None, f"{name}{error.json_path}: {error.message[:500]}"
