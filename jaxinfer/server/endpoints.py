"""The endpoints whose bodies a worker can read, by name."""

from typing import Any

from jaxinfer.server.chat import CHAT
from jaxinfer.server.completions import COMPLETIONS
from jaxinfer.server.endpoint import Choice, Endpoint, TextEndpoint
from jaxinfer.server.fim import FIM
from jaxinfer.server.invocations import INVOCATIONS
from jaxinfer.server.tokens import DETOKENIZE, TOKENIZE

ENDPOINTS: dict[str, Endpoint[Any] | TextEndpoint[Any] | Choice] = {
    endpoint.name: endpoint for endpoint in (COMPLETIONS, CHAT, FIM, INVOCATIONS, TOKENIZE, DETOKENIZE)
}
