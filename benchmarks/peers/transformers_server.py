"""transformers' continuous batching behind the one endpoint that is needed: streamed /v1/completions of token ids.

A thin wrapper rather than `transformers serve`, which takes no token ids: what is measured is its engine, with less
work around it than its own server does. Runs in the environment that has torch and transformers.

    python -m benchmarks.peers.transformers_server FOLDER PORT DTYPE TOKENS

TOKENS: of the KV cache.
"""

import asyncio
import json
import sys
from typing import Any

from aiohttp import web

_PAGE = 256


async def completions(request: web.Request) -> web.StreamResponse:
    """Streams a chunk a token, and the usage last."""
    manager, body = request.app["manager"], await request.json()
    name, events = f"request-{next(request.app['numbers'])}", asyncio.Queue[Any]()
    manager.register_result_handler(name, events.put_nowait)
    manager.add_request(
        body["prompt"], request_id=name, max_new_tokens=body["max_tokens"], streaming=True, eos_token_id=-1
    )
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    decode, sent = request.app["decode"], 0
    while True:
        output = await events.get()
        if output.error:
            raise RuntimeError(output.error)
        if new := output.generated_tokens[sent:]:
            sent += len(new)
            await _send(response, {"choices": [{"index": 0, "text": decode(new)}]})
        if output.is_finished():
            break
    await _send(response, {"choices": [], "usage": {"completion_tokens": sent}})
    await response.write(b"data: [DONE]\n\n")
    return response


async def _send(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")


async def healthy(request: web.Request) -> web.Response:
    return web.Response()


def main(folder: str, port: str, dtype: str, tokens: str) -> None:
    from itertools import count

    import torch
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig, PreTrainedTokenizerFast

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    settings = GenerationConfig(do_sample=False, eos_token_id=-1)
    # By default it takes nearly all of the machine's memory, which is shared here.
    cache = ContinuousBatchingConfig(num_blocks=int(tokens) // _PAGE)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")
    app = web.Application(client_max_size=1 << 26)
    app["numbers"], app["decode"] = count(), tokenizer.decode
    app.add_routes([web.post("/v1/completions", completions), web.get("/health", healthy)])
    with model.continuous_batching_context_manager(settings, False, None, cache) as manager:
        app["manager"] = manager
        web.run_app(app, host="127.0.0.1", port=int(port), print=None)


if __name__ == "__main__":
    main(*sys.argv[1:])
