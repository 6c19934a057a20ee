"""VllmEngineService: vLLM's service of smg-grpc-proto, by which gateways that know vLLM route to us."""

import asyncio
import hashlib
import json
import time
from datetime import UTC, datetime
from typing import Any

import grpc
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2_grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from jaxinfer.folder_files import is_there, read_object
from jaxinfer.rpc.calls import OpenCalls
from jaxinfer.rpc.requests import prepare
from jaxinfer.rpc.tokenizer_zip import tokenizer_zip
from jaxinfer.rpc.vllm_reply import VllmReply
from jaxinfer.rpc.vllm_request import DEFAULTS, completion_body, prompt_only
from jaxinfer.serving.context import Context
from jaxinfer.serving.errors import RequestError
from jaxinfer.serving.load import scheduler_load
from jaxinfer.version import __version__

SERVICE = pb.DESCRIPTOR.services_by_name["VllmEngine"].full_name

_CHUNK_BYTES = 64 * 1024
_MOST_ABORTED = 1000
"""Request ids of one Abort."""


def add_vllm_engine(context: Context, calls: OpenCalls, server: grpc.aio.Server) -> str:
    """Adds the service to a server that has not started; returns its full name."""
    vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(VllmEngineService(context, calls), server)
    return SERVICE


def _not_here(message: str) -> Any:
    """A method that refuses every call."""

    # NOTE: no initial metadata may go first. A gateway takes them for a stream that has begun, and when that ends it
    # subscribes again, with a warning each time; a status alone makes it give up at once.
    async def refuse(self: object, request: object, context: grpc.aio.ServicerContext) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, message)

    return refuse


class VllmEngineService(vllm_engine_pb2_grpc.VllmEngineServicer):
    """vllm_engine.proto says what each call does."""

    def __init__(self, context: Context, calls: OpenCalls):
        self._context = context
        self._calls = calls
        self._started = time.monotonic()
        self._last_request = 0.0

    async def Generate(self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext) -> None:
        self._last_request = time.time()
        async with self._calls.generating(request.request_id or None):
            body = completion_body(request, self._context.client.info)
            only_prompt = prompt_only(request)
            streams = request.stream and not only_prompt
            del request  # neither takes memory while tokens come
            generation = await prepare(self._context, body, DEFAULTS, context.time_remaining)
            del body
            reply = VllmReply(generation, prompt_only=only_prompt)
            async with generation:
                async for step in generation.steps():
                    if not streams:
                        reply.keep(step.deltas)
                        continue
                    for message in reply.chunks(step.deltas):
                        await context.write(message)
                if not streams:
                    # Log-probabilities may be megabytes: they are packed off the event loop.
                    whole = await asyncio.to_thread(reply.whole) if generation.has_logprobs else reply.whole()
                    for message in whole:
                        await context.write(message)

    async def Abort(self, request: pb.AbortRequest, context: grpc.aio.ServicerContext) -> pb.AbortResponse:
        count = len(request.request_ids)
        if count > _MOST_ABORTED:
            message = f"request_ids: has {count} ids; at most {_MOST_ABORTED} are allowed"
            raise RequestError(message, param="request_ids")
        for name in request.request_ids:
            self._calls.abort(name)
        return pb.AbortResponse()

    async def HealthCheck(
        self, request: pb.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> pb.HealthCheckResponse:
        ready = self._context.client.ready
        return pb.HealthCheckResponse(healthy=ready, message="ready" if ready else "the engine is not ready")

    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetModelInfoResponse:
        info, tokenizer = self._context.client.info, self._context.text.tokenizer
        config = await asyncio.to_thread(self._config)
        eos = config.get("eos_token_id", tokenizer.eos_token_id)
        return pb.GetModelInfoResponse(
            model_path=info.name,
            is_generation=True,
            max_context_length=info.max_model_len,
            vocab_size=info.vocab_size,
            served_model_name=self._context.model_name,
            tokenizer_path=str(tokenizer.folder),
            model_type=config.get("model_type"),
            architectures=config.get("architectures"),
            eos_token_ids=eos if isinstance(eos, list) else [] if eos is None else [eos],
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            max_req_input_len=info.max_model_len - 1,
            default_sampling_params_json=self._defaults(),
        )

    def _config(self) -> dict[str, Any]:
        """config.json; empty where the tokenizer is another folder's, without one."""
        file = self._context.text.tokenizer.folder / "config.json"
        return read_object(file) if is_there(file) else {}

    def _defaults(self) -> str:
        declared = self._context.text.defaults.declared
        known = {name: value for name, value in declared.items() if name != "max_tokens"}
        return json.dumps(known) if known else ""

    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetServerInfoResponse:
        info, stats = self._context.client.info, self._context.client.stats()
        return pb.GetServerInfoResponse(
            active_requests=stats.scheduler.running + stats.scheduler.waiting,
            last_receive_timestamp=self._last_request,
            uptime_seconds=time.monotonic() - self._started,
            server_type="jaxinfer",
            data_parallel_size=1,
            block_size=info.block_size,
            attention_backend=info.attention_backend,
            max_num_seqs=info.max_num_seqs,
        )

    async def GetLoads(self, request: pb.GetLoadsRequest, context: grpc.aio.ServicerContext) -> pb.GetLoadsResponse:
        info, stats = self._context.client.info, self._context.client.stats()
        load = pb.SchedulerLoad(**scheduler_load(info, stats))
        now = datetime.now(UTC).isoformat()
        return pb.GetLoadsResponse(timestamp=now, version=__version__, dp_rank_count=1, loads=[load])

    async def GetTokenizer(self, request: common_pb2.GetTokenizerRequest, context: grpc.aio.ServicerContext) -> None:
        with self._context.admission.place():
            templates = self._context.text.chat_template.templates
            packed = await asyncio.to_thread(tokenizer_zip, self._context.text.tokenizer.folder, templates)
            for start in range(0, len(packed), _CHUNK_BYTES):
                data = packed[start : start + _CHUNK_BYTES]
                last = start + _CHUNK_BYTES >= len(packed)
                fingerprint = hashlib.sha256(packed).hexdigest() if last else ""
                await context.write(common_pb2.GetTokenizerChunk(data=data, sha256=fingerprint))

    Embed = _not_here("Embed: this server generates text and embeds none")
    FlushCache = _not_here("FlushCache: the prefix cache gives its blocks up when they are needed")
    StartProfile = _not_here("StartProfile: there is no profiler")
    StopProfile = _not_here("StopProfile: there is no profiler")
    SubscribeKvEvents = _not_here("SubscribeKvEvents: the prefix cache tells no events yet; GetLoads tells the load")
