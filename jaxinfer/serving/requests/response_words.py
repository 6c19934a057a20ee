"""Words: what errors of a chat's functions are called in the words of the request that became a chat."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from jaxinfer.errors import ParameterError
from jaxinfer.serving.errors import RequestError, as_request_error

_STATIC = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "top_logprobs",
    "response_format": "text.format",
    "response_format.json_schema": "text.format.schema",
    "tool_choice.allowed_tools": "tool_choice",
}
_PLACE = re.compile(r"\[\d+\]|\.?[^.\[]+")
_CHOSEN = re.compile(r"^(tool_choice(?:\.tools\[\d+\])?)\.function\b")


class Words:
    """Translates places of a chat's body, `messages[3].content`, to those of a request, `input[2].content`.

    places: of those that differ, beside the names that always do; what is inside them is called the same.
    """

    def __init__(self, places: Mapping[str, str]):
        self._places = {**_STATIC, **places}

    def own(self, place: str) -> str:
        """A place as the request calls it."""
        parts = _PLACE.findall(place)
        for count in range(len(parts), 0, -1):
            found = self._places.get("".join(parts[:count]))
            if found is not None:
                place = found + "".join(parts[count:])
                break
        return _CHOSEN.sub(r"\1", place)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise errors that name a field as RequestError in the request's words."""
        try:
            yield
        except (RequestError, ParameterError) as error:
            raise self.translated(as_request_error(error)) from None

    def translated(self, error: RequestError) -> RequestError:
        """Translate an error to the request's words."""
        if error.param is None:
            return error
        return renamed(error, self.own(error.param))


def renamed(error: RequestError, param: str) -> RequestError:
    """Return the error of a field that is called otherwise."""
    if error.param is None or param == error.param:
        return error
    message = error.message
    if message.startswith(error.param):
        message = param + message.removeprefix(error.param)
    return RequestError(message, kind=error.kind, param=param, code=error.code, retry_after=error.retry_after)
