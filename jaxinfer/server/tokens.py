"""POST /tokenize and /detokenize, in vLLM's form."""

from aiohttp import web

from jaxinfer.server.body import receive_answer
from jaxinfer.serving.requests.tokens import DETOKENIZE, TOKENIZE


async def tokenize(request: web.Request) -> web.Response:
    """Token ids of a text (special tokens added by default) or of a conversation (by default as rendered)."""
    return await receive_answer(request, TOKENIZE)


async def detokenize(request: web.Request) -> web.Response:
    """The text of token ids, special tokens included."""
    return await receive_answer(request, DETOKENIZE)
