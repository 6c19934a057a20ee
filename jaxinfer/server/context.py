"""What every handler needs."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from aiohttp import web

from jaxinfer.engine.client import EngineClient
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.metrics import ServerMetrics
from jaxinfer.sampling import SamplingParams
from jaxinfer.server.config import ServerConfig
from jaxinfer.server.errors import ApiError
from jaxinfer.server.generation import Generation
from jaxinfer.server.schema import GenerateBody
from jaxinfer.text import TextProcessor


@dataclass(frozen=True)
class Context:
    """The engine, the model's text side, and the server's settings."""

    client: EngineClient
    text: TextProcessor
    options: ServerConfig
    model_name: str
    metrics: ServerMetrics
    started: int = field(default_factory=lambda: int(time.time()))

    def check_model(self, name: str | None) -> None:
        """Raises ApiError 404 where a request names another model; one that names none means this one."""
        if name is not None and name != self.model_name:
            message = f"model: {name!r} is not served here; {self.model_name!r} is"
            raise ApiError(404, message, param="model", code="model_not_found")

    def generation(
        self, reply_id: str, prompts: Sequence[list[int]], params: Sequence[SamplingParams], body: GenerateBody
    ) -> Generation:
        """The engine requests of one HTTP request. Raises ApiError where they are too many."""
        choices = sum(param.n for param in params)
        if choices > self.options.max_choices:
            message = f"n: {choices} choices over all prompts; at most {self.options.max_choices} are allowed"
            raise ApiError(400, message, param="n")
        requests = [
            GenerateRequest(f"{reply_id}-{i}", prompt, param, body.priority or 0, body.cache_salt or "")
            for i, (prompt, param) in enumerate(zip(prompts, params, strict=True))
        ]
        return Generation(self.client, self.text.tokenizer, self.metrics, requests)


CONTEXT = web.AppKey("context", Context)


def reply_id(kind: str) -> str:
    """A name for a reply that nobody else has."""
    return f"{kind}-{uuid.uuid4().hex}"
