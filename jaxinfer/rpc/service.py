"""JaxinferService: jaxinfer.v1.Jaxinfer, before the same engine and text processor as HTTP."""

import asyncio
import functools
from collections.abc import AsyncIterator

import grpc

from jaxinfer.rpc import jaxinfer_pb2 as pb
from jaxinfer.rpc import jaxinfer_pb2_grpc
from jaxinfer.rpc.access import ACCEPTED_KEY
from jaxinfer.rpc.calls import OpenCalls
from jaxinfer.rpc.replies import pack_choice, pack_prompt, pack_stats, pack_usage
from jaxinfer.rpc.requests import completion_body, prepare
from jaxinfer.serving.bodies.structure import LARGE_BYTES
from jaxinfer.serving.context import Context
from jaxinfer.serving.generation import Generation
from jaxinfer.serving.requests.params import check_ids
from jaxinfer.serving.requests.tokens import check_chars, check_count, off_loop
from jaxinfer.version import __version__

REQUEST_ID = "x-request-id"
"""Name of the initial metadata that carries a request's id."""


class JaxinferService(jaxinfer_pb2_grpc.JaxinferServicer):
    """jaxinfer.proto says what each call does."""

    def __init__(self, context: Context, calls: OpenCalls):
        self._context = context
        self._calls = calls

    async def Generate(self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext) -> None:
        given = request.request_id if request.HasField("request_id") else None
        async with self._calls.generating(given) as name:
            body = completion_body(request, self._context.client.info)
            del request  # neither takes memory while tokens come
            generation = await prepare(self._context, body, self._context.text.defaults, context.time_remaining)
            del body
            async with generation:
                await context.send_initial_metadata(((REQUEST_ID, name),))
                async for message in _messages(generation):
                    message.request_id, name = name, ""
                    await context.write(message)

    async def Abort(self, request: pb.AbortRequest, context: grpc.aio.ServicerContext) -> pb.AbortResponse:
        return pb.AbortResponse(aborted=self._calls.abort(request.request_id))

    async def GetModel(self, request: pb.GetModelRequest, context: grpc.aio.ServicerContext) -> pb.GetModelResponse:
        info = self._context.client.info
        return pb.GetModelResponse(
            model=self._context.model_name,
            max_model_len=info.max_model_len,
            vocab_size=info.vocab_size,
            max_num_seqs=info.max_num_seqs,
            block_size=info.block_size,
            num_blocks=info.num_blocks,
            eos_token_id=self._context.text.tokenizer.eos_token_id,
            version=__version__,
        )

    async def GetStatistics(
        self, request: pb.GetStatisticsRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetStatisticsResponse:
        return pb.GetStatisticsResponse(values=pack_stats(self._context.client.stats()))

    async def Tokenize(self, request: pb.TokenizeRequest, context: grpc.aio.ServicerContext) -> pb.TokenizeResponse:
        with self._context.admission.place():
            special = not request.HasField("add_special_tokens") or request.add_special_tokens
            self._context.text.tokenizer.check_text(request.text, "text")
            encode = self._context.text.encode_async
            if len(request.text) > LARGE_BYTES:
                encode = functools.partial(self._context.workers.encode, key=ACCEPTED_KEY.get())
            (ids,) = await encode([request.text], add_special_tokens=special, params=["text"])
            check_count(len(ids), "text")
            response = pb.TokenizeResponse()
            for start in range(0, len(ids), _IDS_AT_ONCE):
                response.token_ids.extend(ids[start : start + _IDS_AT_ONCE])
                await asyncio.sleep(0)  # others' turn
            return response

    async def Detokenize(
        self, request: pb.DetokenizeRequest, context: grpc.aio.ServicerContext
    ) -> pb.DetokenizeResponse:
        with self._context.admission.place():
            check_count(len(request.token_ids), "token_ids")
            ids: list[int] = []
            for start in range(0, len(request.token_ids), _IDS_AT_ONCE):
                ids += request.token_ids[start : start + _IDS_AT_ONCE]
                check_ids(ids[start:], self._context.client.info, "token_ids")
                await asyncio.sleep(0)  # others' turn
            skip = request.skip_special_tokens
            if len(ids) <= _IDS_AT_ONCE:
                text = self._context.text.tokenizer.decode(ids, skip_special_tokens=skip)
            else:
                key = ACCEPTED_KEY.get()
                text = await self._context.workers.decode(ids, skip_special_tokens=skip, key=key)
            check_chars(len(text), self._context.options.max_prompt_chars, "token_ids")
            return pb.DetokenizeResponse(text=text)


_IDS_AT_ONCE = 16_384
"""Token ids that the event loop handles in one turn."""

_MOST_DELTAS = 64
"""Most deltas in one message: a slow client gets many, and accepts 4 MiB a message by default."""


async def _messages(generation: Generation) -> AsyncIterator[pb.GenerateResponse]:
    told = False
    async for step in generation.steps():
        prompt = generation.prompt_logprobs(0)
        if prompt is not None and not told:
            told = True
            for message in await off_loop(len(prompt), lambda entries=prompt: pack_prompt(entries)):
                yield message
        for first in range(0, len(step.deltas), _MOST_DELTAS):
            yield pb.GenerateResponse(
                choices=[pack_choice(delta) for delta in step.deltas[first : first + _MOST_DELTAS]]
            )
    yield pb.GenerateResponse(usage=pack_usage(generation.usage()))
