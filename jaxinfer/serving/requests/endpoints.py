"""The endpoints whose bodies a worker can read, by name."""

from typing import Any

from jaxinfer.serving.requests.chat import CHAT
from jaxinfer.serving.requests.completions import COMPLETIONS
from jaxinfer.serving.requests.endpoint import Choice, Endpoint, TextEndpoint
from jaxinfer.serving.requests.fim import FIM
from jaxinfer.serving.requests.invocations import INVOCATIONS
from jaxinfer.serving.requests.tokens import DETOKENIZE, TOKENIZE

ENDPOINTS: dict[str, Endpoint[Any] | TextEndpoint[Any] | Choice] = {
    endpoint.name: endpoint for endpoint in (COMPLETIONS, CHAT, FIM, INVOCATIONS, TOKENIZE, DETOKENIZE)
}
