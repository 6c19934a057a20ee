"""The endpoints whose bodies a worker can read, by name."""

from typing import Any

import msgspec

from jaxinfer.serving.errors import RequestError
from jaxinfer.serving.requests.chat import CHAT
from jaxinfer.serving.requests.completions import COMPLETIONS
from jaxinfer.serving.requests.endpoint import Choice, Endpoint, TextEndpoint
from jaxinfer.serving.requests.fim import FIM
from jaxinfer.serving.requests.messages import COUNT_TOKENS, MESSAGES
from jaxinfer.serving.requests.responses import RESPONSES
from jaxinfer.serving.requests.tokens import DETOKENIZE, TOKENIZE


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
"""A chat or a completion, as SageMaker's /invocations takes both."""

ENDPOINTS: dict[str, Endpoint[Any] | TextEndpoint[Any] | Choice] = {
    endpoint.name: endpoint
    for endpoint in (COMPLETIONS, CHAT, FIM, RESPONSES, INVOCATIONS, MESSAGES, COUNT_TOKENS, TOKENIZE, DETOKENIZE)
}
