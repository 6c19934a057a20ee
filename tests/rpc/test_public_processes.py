"""`jaxinfer serve --grpc-port` as its clients see it: plain grpcio against processes over the simulated device."""

import asyncio
import contextlib
import re
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from jaxinfer.errors import ParameterError
from jaxinfer.rpc import jaxinfer_pb2 as pb
from jaxinfer.rpc import jaxinfer_pb2_grpc
from jaxinfer.server.run import bind_socket, hold_grpc_port
from jaxinfer.serving.config import ServerConfig
from tests.llm.simulated import right_tokens
from tests.processes.serving import Serving, serving
from tests.rpc.public import collect, refused, stub_of, tokens_of

Code = grpc.StatusCode
SLOW = ("--drain-seconds", "20")


@contextlib.asynccontextmanager
async def with_grpc(folder: Path, *flags: str) -> AsyncIterator[tuple[Serving, str]]:
    """A server, and its gRPC address as its ready message tells it."""
    async with serving(folder, "--grpc-port", "0", *flags) as server:
        assert server.process.stdout is not None
        async with asyncio.timeout(30):
            await server.process.stdout.readline()
            line = (await server.process.stdout.readline()).decode()
        found = re.search(r"gRPC at (\S+): jaxinfer\.v1\.Jaxinfer, ", line)
        assert found is not None, line
        yield server, found[1]


def ask(prompt: list[int], count: int, **values: Any) -> pb.GenerateRequest:
    ids = pb.TokenIds(ids=prompt)
    return pb.GenerateRequest(token_ids=ids, max_tokens=count, seed=1, ignore_eos=True, **values)


async def reflect(stub: Any, **asked: Any) -> reflection_pb2.ServerReflectionResponse:
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(**asked)]))
    return await call.read()


async def test_health_reflection_and_streaming_with_a_plain_client(folder: Path) -> None:
    async with (
        with_grpc(folder, "--max-num-seqs", "8") as (server, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        health, status = stub_of(health_pb2_grpc.HealthStub, channel), health_pb2.HealthCheckResponse
        for service in ("", "jaxinfer.v1.Jaxinfer"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == status.SERVING

        reflection = stub_of(reflection_pb2_grpc.ServerReflectionStub, channel)
        listed = (await reflect(reflection, list_services="")).list_services_response.service
        names = {service.name for service in listed}
        assert {"jaxinfer.v1.Jaxinfer", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} <= names
        described = await reflect(reflection, file_containing_symbol="jaxinfer.v1.Jaxinfer")
        (raw,) = described.file_descriptor_response.file_descriptor_proto
        file = descriptor_pb2.FileDescriptorProto.FromString(raw)
        assert [method.name for method in file.service[0].method][:2] == ["Generate", "Abort"]

        stub = stub_of(jaxinfer_pb2_grpc.JaxinferStub, channel)
        http = await server.stream(prompt=[1, 2, 3], max_tokens=20)
        streamed = tokens_of(await collect(stub.Generate(ask([1, 2, 3], 20))))
        assert streamed == http.tokens == right_tokens([1, 2, 3], 20, seed=1)
        many = await asyncio.gather(*(collect(stub.Generate(ask([i, 3], 30, n=2))) for i in range(40)))
        for i, messages in enumerate(many):
            for choice in range(2):
                assert tokens_of(messages, choice) == right_tokens([i, 3], 30, seed=1, index=choice)

        leaving = [stub.Generate(ask([i], 60)) for i in range(12)]
        await asyncio.gather(*(call.initial_metadata() for call in leaving))
        for call in leaving:
            call.cancel()
        async with asyncio.timeout(20):
            while await server.metric("vllm:num_requests_running") + await server.metric("vllm:num_requests_waiting"):
                await asyncio.sleep(0.02)
        assert await server.metric("vllm:kv_cache_usage_perc") == 0


@pytest.mark.long
async def test_all_api_processes_serve_one_port_and_what_dies_is_started_again(folder: Path) -> None:
    async with with_grpc(folder, "--api-workers", "2") as (server, address):
        killed = server.child("api:", 0)
        for _ in range(2):
            for _ in range(12):
                async with grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
                    call = stub_of(jaxinfer_pb2_grpc.JaxinferStub, channel).Generate(ask([5], 9), wait_for_ready=True)
                    assert tokens_of(await collect(call)) == right_tokens([5], 9, seed=1)
            if killed.is_running():
                killed.kill()
                await server.until("/readyz", 200)


@pytest.mark.long
async def test_a_dead_engine_is_not_serving_until_it_is_back(folder: Path) -> None:
    async with with_grpc(folder) as (server, address), grpc.aio.insecure_channel(address) as channel:
        stub, status = stub_of(jaxinfer_pb2_grpc.JaxinferStub, channel), health_pb2.HealthCheckResponse
        watch = stub_of(health_pb2_grpc.HealthStub, channel).Watch(
            health_pb2.HealthCheckRequest(service="jaxinfer.v1.Jaxinfer")
        )
        assert (await watch.read()).status == status.SERVING
        server.child("engine:").kill()
        async with asyncio.timeout(60):
            assert (await watch.read()).status == status.NOT_SERVING
            assert (await refused(stub.Generate(ask([5], 9))))[0] is Code.UNAVAILABLE
            assert (await watch.read()).status == status.SERVING
        assert tokens_of(await collect(stub.Generate(ask([5], 9)))) == right_tokens([5], 9, seed=1)


@pytest.mark.long
async def test_a_server_that_ends_lets_streams_end_and_waits_for_no_watcher(folder: Path) -> None:
    async with with_grpc(folder, *SLOW) as (server, address), grpc.aio.insecure_channel(address) as channel:
        stub = stub_of(jaxinfer_pb2_grpc.JaxinferStub, channel)
        watch = stub_of(health_pb2_grpc.HealthStub, channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        held = stub_of(reflection_pb2_grpc.ServerReflectionStub, channel).ServerReflectionInfo()  # and never ended
        await held.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        await held.read()
        calls = [stub.Generate(ask([i], 60)) for i in range(30)]
        await asyncio.gather(*(call.initial_metadata() for call in calls))
        server.process.send_signal(signal.SIGTERM)
        for i, messages in enumerate(await asyncio.gather(*map(collect, calls))):
            assert tokens_of(messages) == right_tokens([i], 60, seed=1)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        async with asyncio.timeout(15):  # less than the time to drain
            assert await server.process.wait() == 0


@pytest.mark.long
async def test_a_key_is_asked_for(folder: Path) -> None:
    async with with_grpc(folder, "--api-key", "secret") as (_, address), grpc.aio.insecure_channel(address) as channel:
        stub = stub_of(jaxinfer_pb2_grpc.JaxinferStub, channel)
        assert (await refused(stub.Generate(ask([5], 9))))[0] is Code.UNAUTHENTICATED
        call = stub.Generate(ask([5], 9), metadata=(("authorization", "Bearer secret"),))
        assert tokens_of(await collect(call)) == right_tokens([5], 9, seed=1)


def test_a_port_in_use_is_an_error_before_a_model_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ParameterError, match=r"grpc_port: cannot listen .* choose another --grpc-port"):
            hold_grpc_port(ServerConfig(grpc_port=taken.getsockname()[1]))
    with bind_socket(ServerConfig(port=0)) as http:
        http.listen()
        with pytest.raises(ParameterError, match="grpc_port"):
            hold_grpc_port(ServerConfig(grpc_port=http.getsockname()[1]))


def test_a_port_that_is_held_is_held() -> None:
    with hold_grpc_port(ServerConfig(grpc_port=0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(ParameterError, match="grpc_port: cannot listen"):
            hold_grpc_port(ServerConfig(grpc_port=port))
        with pytest.raises(ParameterError, match="port: cannot listen"):
            bind_socket(ServerConfig(port=port))


def test_others_can_reach_grpc_only_with_a_key() -> None:
    with pytest.raises(ParameterError, match=r"host: .* give --api-key"):
        hold_grpc_port(ServerConfig(host="0.0.0.0", grpc_port=0))
