"""Errors of a chat in the words of Anthropic's fields."""

import contextlib
import re
from collections.abc import Iterator, Mapping

from jaxinfer.errors import ParameterError
from jaxinfer.serving.errors import RequestError, as_request_error

_NAMES = {
    "continue_final_message": "messages",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
    "stop": "stop_sequences",
    "tool_choice.function": "tool_choice",
    "user": "metadata.user_id",
}
"""Fields of a chat, and Anthropic's names of them."""

_FUNCTION = re.compile(r"\.function(\.parameters|\.arguments)?(?=[.\[]|$)")
_INNER = {".parameters": ".input_schema", ".arguments": ".input", None: ""}
_ENDS = re.compile(r"[.\[]|$")


@contextlib.contextmanager
def in_anthropics_words(places: Mapping[str, str]) -> Iterator[None]:
    """Rename the field of an error that the block raises. places: of the conversation, see `Conversation`."""
    try:
        yield
    except (RequestError, ParameterError) as error:
        raise with_anthropics_names(as_request_error(error), places) from None


def with_anthropics_names(error: RequestError, places: Mapping[str, str] | None = None) -> RequestError:
    """Return an error whose message, too, begins with Anthropic's name of its field."""
    if error.param is None:
        return error
    param = anthropics_name(error.param, places or {})
    if param == error.param:
        return error
    message = error.message
    if message.startswith(error.param):
        message = param + message[len(error.param) :]
    return RequestError(message, kind=error.kind, param=param, code=error.code, retry_after=error.retry_after)


def anthropics_name(param: str, places: Mapping[str, str]) -> str:
    """Anthropic's name of a chat's field: that of the longest part that has one, and the rest."""
    known = {**_NAMES, **places}
    ends = [found.start() for found in _ENDS.finditer(param)]
    end = next((end for end in reversed(ends) if param[:end] in known), 0)
    name = known[param[:end]] + param[end:] if end else param
    return _FUNCTION.sub(lambda found: _INNER[found[1]], name, count=1)
