"""A body that is a chat or a completion, as SageMaker's /invocations takes both."""

from typing import Any

import msgspec

from jaxinfer.serving.errors import RequestError
from jaxinfer.serving.requests.chat import CHAT
from jaxinfer.serving.requests.completions import COMPLETIONS
from jaxinfer.serving.requests.endpoint import Choice, Endpoint


def _choose(data: bytes | bytearray) -> Endpoint[Any]:
    try:
        names = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).keys()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return COMPLETIONS  # which says what is wrong with the body
    if "messages" in names:
        return CHAT
    if "prompt" in names:
        return COMPLETIONS
    raise RequestError("prompt: give either prompt or messages", param="prompt")


INVOCATIONS = Choice("invocations", _choose, (CHAT, COMPLETIONS))
