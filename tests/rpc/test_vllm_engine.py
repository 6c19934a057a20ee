"""VllmEngine by its published stubs, as a gateway uses it."""

import asyncio
import hashlib
import io
import json
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jaxinfer.constraint import Constraint
from jaxinfer.engine.client.local import LocalEngineClient
from jaxinfer.llm import engine_config
from jaxinfer.rpc.tokenizer_zip import tokenizer_zip
from jaxinfer.text import Tokenizer
from jaxinfer.text.template.files import load_chat_templates
from tests.engine.reading import until
from tests.llm import simulated
from tests.rpc.http2 import HEADERS, call_frames
from tests.rpc.public import Public, Serve, public, refused, stub_of

pytest.importorskip("smg_grpc_proto", reason="smg-grpc-proto (the extra `gateway`) is not installed")

from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2_grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

Code = grpc.StatusCode
IDS = [4, 5, 6]


def engine_of(served: Public) -> Any:
    return stub_of(vllm_engine_pb2_grpc.VllmEngineStub, served.channel)


def ask(*, stream: bool = True, ids: list[int] = IDS, request_id: str = "r", **params: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        request_id=request_id,
        tokenized=pb.TokenizedInput(input_ids=ids),
        sampling_params=pb.SamplingParams(**params),
        stream=stream,
    )


async def answers(call: Any) -> tuple[list[pb.GenerateStreamChunk], dict[int, pb.GenerateComplete]]:
    async with asyncio.timeout(30):
        messages = [message async for message in call]
    chunks = [message.chunk for message in messages if message.HasField("chunk")]
    return chunks, {message.complete.index: message.complete for message in messages if message.HasField("complete")}


@pytest.fixture
async def simulated_server(folder: Path) -> AsyncIterator[Public]:
    engine = LocalEngineClient(simulated.build_engine(engine_config(str(folder), None, {"max_num_seqs": 8})).core)
    async with public(folder, engine) as served:
        yield served


async def test_streams_and_whole_answers_have_the_engines_tokens(simulated_server: Public) -> None:
    stub = engine_of(simulated_server)
    params: dict[str, Any] = {"n": 2, "max_tokens": 7, "seed": 3, "temperature": 1.0, "ignore_eos": True}
    chunks, ends = await answers(stub.Generate(ask(**params)))
    _, whole = await answers(stub.Generate(ask(stream=False, **params)))
    for index in range(2):
        right = simulated.right_tokens(IDS, 7, seed=3, index=index)
        own = [chunk for chunk in chunks if chunk.index == index]
        assert [token for chunk in own for token in chunk.token_ids] == right == list(whole[index].output_ids)
        assert sum(chunk.completion_tokens for chunk in own) == 7 == ends[index].completion_tokens
        assert ends[index].output_ids == own[-1].token_ids
        for end in (ends[index], whole[index]):
            assert (end.finish_reason, end.prompt_tokens, end.completion_tokens) == ("length", 3, 7)
    await until(lambda: simulated_server.engine.stats().kv.blocks_used == 0)


async def test_a_value_of_zero_is_none_where_it_makes_no_sense_and_defaults_are_vllms(
    serve: Serve, folder: Path
) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.25, "max_new_tokens": 3}))
    served = await serve()
    await answers(engine_of(served).Generate(ask()))
    await answers(engine_of(served).Generate(ask(temperature=0.0, top_p=0.5, repetition_penalty=2.0, n=2, seed=-7)))
    silent, loud = (request.sampling for request in served.engine.submitted)
    assert (silent.temperature, silent.top_p, silent.repetition_penalty, silent.n) == (1.0, 1, 1, 1)
    assert (silent.max_tokens, silent.seed, silent.skip_special_tokens) == (None, None, False)
    assert (loud.temperature, loud.top_p, loud.repetition_penalty, loud.n, loud.seed) == (0.0, 0.5, 2.0, 2, -7)


async def test_stops_are_told(serve: Serve) -> None:
    served = await serve()
    _, ends = await answers(engine_of(served).Generate(ask(stop=["wor"])))
    assert (ends[0].finish_reason, ends[0].matched_stop_str) == ("stop", "wor")
    _, ends = await answers(engine_of(served).Generate(ask(stream=False)))
    assert (ends[0].finish_reason, ends[0].WhichOneof("matched_stop")) == ("stop", None)
    served.engine.stop_token = 7
    _, ends = await answers(engine_of(served).Generate(ask(stop_token_ids=[7])))
    assert (ends[0].finish_reason, ends[0].matched_token_id) == ("stop", 7)


@pytest.mark.parametrize("stream", [True, False])
async def test_log_probabilities(serve: Serve, stream: bool) -> None:
    served = await serve()
    chunks, ends = await answers(engine_of(served).Generate(ask(stream=stream, logprobs=1, prompt_logprobs=1, n=2)))
    for index in range(2):
        parts = [chunk for chunk in chunks if chunk.index == index] if stream else [ends[index]]
        ids = [token for part in parts for token in part.output_logprobs.token_ids]
        told = [part.token_ids if isinstance(part, pb.GenerateStreamChunk) else part.output_ids for part in parts]
        assert ids == [token for tokens in told for token in tokens]
        assert {value for part in parts for value in part.output_logprobs.token_logprobs} == {-0.25}
        assert all(len(top.values) == 1 for part in parts for top in part.output_logprobs.top_logprobs)
        first = parts[0].input_logprobs
        assert [entry.HasField("value") for entry in first.token_logprobs] == [False, True, True]
        assert (list(first.token_ids), first.token_logprobs[1].value) == (IDS, -1.5)
        assert not any(part.HasField("input_logprobs") for part in parts[1:])


@pytest.mark.parametrize("stream", [True, False])
async def test_no_token_is_shown_where_max_tokens_is_0(serve: Serve, stream: bool) -> None:
    served = await serve()
    params: dict[str, Any] = {"max_tokens": 0, "n": 2, "logprobs": 1, "prompt_logprobs": 1}
    for stop in (None, served.engine.tokenizer.encode("hello world")[0]):
        served.engine.stop_token, served.engine.reply = stop, "" if stop else "hello world"
        ids = [] if stop is None else [stop]
        chunks, ends = await answers(engine_of(served).Generate(ask(stream=stream, stop_token_ids=ids, **params)))
        assert (chunks, sorted(ends)) == ([], [0, 1])
        for end in ends.values():
            assert (list(end.output_ids), end.finish_reason, end.WhichOneof("matched_stop")) == ([], "length", None)
            assert (end.prompt_tokens, end.completion_tokens, end.HasField("output_logprobs")) == (3, 0, False)
            assert list(end.input_logprobs.token_ids) == IDS
            assert [entry.value for entry in end.input_logprobs.token_logprobs] == [0.0, -1.5, -1.5]


async def test_a_text_is_tokenised_and_a_prompt_cut(serve: Serve) -> None:
    served = await serve()
    stub, tokenizer = engine_of(served), served.engine.tokenizer
    await answers(stub.Generate(pb.GenerateRequest(text="hello world", stream=True)))
    await answers(stub.Generate(ask(ids=[1] * 300 + [2, 3], truncate_prompt_tokens=2)))
    await answers(stub.Generate(ask(ids=[1] * 300 + [2, 3], truncate_prompt_tokens=-1)))
    text, two, most = (list(request.prompt_token_ids) for request in served.engine.submitted)
    assert text == tokenizer.encode("hello world")
    assert two == [2, 3]
    assert most == [1] * 253 + [2, 3]


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"json_schema": "{"}, "structured_outputs.json"), ({}, {"regex": ""}, "structured_outputs.regex"),
    ({}, {"structural_tag": ""}, "structured_outputs.structural_tag"),
    ({}, {"json_object": False}, "structured_outputs"),
    ({}, {"choice": pb.ChoiceConstraint(choices=[])}, "structured_outputs.choice"),
    ({"kv_transfer_params": pb.KvTransferParams()}, {}, "kv_transfer_params"),
    ({"kv_transfer_params_json": "{}"}, {}, "kv_transfer_params_json"),
    ({"mm_inputs": pb.MultimodalInputs()}, {}, "mm_inputs"), ({"media_refs": pb.MediaRefs()}, {}, "media_refs"),
    ({"extra_mm_inputs": [pb.MultimodalInputs()]}, {}, "extra_mm_inputs"),
    ({"data_parallel_rank": 1}, {}, "data_parallel_rank"), ({"tokenized": None}, {}, "input"),
    ({}, {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"), ({}, {"logprobs": -2}, "logprobs"),
    ({}, {"n": 200}, "n"), ({}, {"top_p": 2.0}, "top_p"), ({}, {"max_tokens": 0, "min_tokens": 2}, "min_tokens"),
    ({}, {"max_tokens": 300}, "max_tokens"), ({"tokenized": pb.TokenizedInput(input_ids=[999])}, {}, "prompt"),
    ({"tokenized": pb.TokenizedInput(input_ids=[1] * 256)}, {}, "prompt"), ({"request_id": "a b"}, {}, "request_id"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "params", "field"), REFUSED, ids=[field for _, _, field in REFUSED])
async def test_what_we_do_not_have_is_refused_by_name(
    serve: Serve, values: dict[str, Any], params: dict[str, Any], field: str
) -> None:
    served = await serve()
    tokenized = pb.TokenizedInput(input_ids=IDS)
    request = pb.GenerateRequest(
        **{"tokenized": tokenized, "sampling_params": pb.SamplingParams(**params), "stream": True, **values}
    )
    code, details, trailers = await refused(engine_of(served).Generate(request))
    assert (code, trailers["jaxinfer-field"]) == (Code.INVALID_ARGUMENT, field)
    assert details.startswith(f"{field}: ")
    assert not served.engine.submitted


CONSTRAINTS: list[tuple[dict[str, Any], Constraint]] = [
    ({"json_schema": '{"type": "null"}'}, Constraint.schema({"type": "null"})),
    ({"regex": "a+"}, Constraint.text("regex", "a+")),
    ({"grammar": 'root ::= "a"'}, Constraint.text("grammar", 'root ::= "a"')),
    ({"json_object": True}, Constraint("json_object")),
    ({"choice": pb.ChoiceConstraint(choices=["a", "b"])}, Constraint.choice(["a", "b"])),
]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("said", "constraint"), CONSTRAINTS, ids=[next(iter(said)) for said, _ in CONSTRAINTS])
async def test_a_constraint_reaches_the_engine(
    serve: Serve, said: dict[str, Any], constraint: Constraint, first: bool
) -> None:
    """And holds from the first token on."""
    served = await serve()
    await answers(engine_of(served).Generate(ask(grammar_from_first_token=first, **said)))
    assert served.engine.submitted[0].sampling.constraint == constraint


async def test_a_constraint_from_the_future_is_refused(serve: Serve) -> None:
    served = await serve()
    params = pb.SamplingParams.FromString(b"\xc2\x3e\x01x")  # field 1000, a string
    request = pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=IDS), sampling_params=params)
    code, details, _ = await refused(engine_of(served).Generate(request))
    assert (code, details.split(":")[0]) == (Code.INVALID_ARGUMENT, "SamplingParams.1000")


async def test_abort_cancel_and_a_dead_engine(serve: Serve) -> None:
    served = await serve()
    stub = engine_of(served)
    served.engine.gate.clear()
    calls = [stub.Generate(ask(request_id=name)) for name in ("a", "b", "c")]
    await until(lambda: len(served.engine.active) == 3)
    await stub.Abort(pb.AbortRequest(request_ids=["a", "nobody"]))
    assert (await refused(calls[0]))[0] is Code.CANCELLED
    calls[1].cancel()
    await until(lambda: len(served.engine.active) == 1)
    assert (await stub.HealthCheck(pb.HealthCheckRequest())).healthy
    served.engine.die()
    assert (await refused(calls[2]))[0] is Code.UNAVAILABLE
    assert not (await stub.HealthCheck(pb.HealthCheckRequest())).healthy
    assert (await refused(stub.GetLoads(pb.GetLoadsRequest())))[0] is Code.UNAVAILABLE


async def test_the_ids_of_an_abort_are_counted(serve: Serve) -> None:
    served = await serve()
    engine = engine_of(served)
    assert await engine.Abort(pb.AbortRequest(request_ids=[""] * 1000)) == pb.AbortResponse()
    code, details, trailers = await refused(engine.Abort(pb.AbortRequest(request_ids=[""] * 1001)))
    assert (code, trailers["jaxinfer-field"]) == (Code.INVALID_ARGUMENT, "request_ids")
    assert "1001 ids" in details


async def test_model_server_and_loads_are_told(serve: Serve, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}))
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.25, "max_new_tokens": 3}))
    served = await serve(served_model_name="named")
    stub = engine_of(served)
    model = await stub.GetModelInfo(pb.GetModelInfoRequest())
    assert (model.served_model_name, model.is_generation, model.max_context_length) == ("named", True, 256)
    assert (model.model_type, list(model.architectures)) == ("qwen3", ["Qwen3ForCausalLM"])
    assert list(model.eos_token_ids) == [served.engine.tokenizer.eos_token_id]
    assert (model.vocab_size, model.max_req_input_len) == (268, 255)
    assert json.loads(model.default_sampling_params_json) == {"temperature": 0.25}
    served.engine.gate.clear()
    call = stub.Generate(ask())
    await until(lambda: len(served.engine.active) == 1)
    server = await stub.GetServerInfo(pb.GetServerInfoRequest())
    assert (server.active_requests, server.data_parallel_size, server.max_num_seqs) == (1, 1, 8)
    assert server.last_receive_timestamp > 0
    (load,) = (await stub.GetLoads(pb.GetLoadsRequest())).loads
    assert (load.num_running_reqs, load.num_total_reqs, load.max_running_requests) == (1, 1, 8)
    assert (load.token_usage, load.num_used_tokens, load.max_total_num_tokens) == (2 / 64, 32, 1024)
    call.cancel()


async def test_the_tokenizer_comes_as_files_that_make_the_same_tokenizer(
    serve: Serve, folder: Path, tmp_path: Path
) -> None:
    (folder / "secret.txt").write_text("mine")
    (folder / "padding.model").write_bytes(bytes(range(256)) * 2000)
    (folder / "tokenizer.4.0.json").write_bytes((folder / "tokenizer.json").read_bytes())
    served = await serve()
    chunks = [chunk async for chunk in engine_of(served).GetTokenizer(common_pb2.GetTokenizerRequest())]
    packed = b"".join(chunk.data for chunk in chunks)
    assert [chunk.sha256 for chunk in chunks] == [""] * (len(chunks) - 1) + [hashlib.sha256(packed).hexdigest()]
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        read = {"tokenizer.json", "tokenizer_config.json", "tokenizer.4.0.json", "padding.model"}
        assert set(archive.namelist()) == read | {"chat_template.jinja"}
        archive.extractall(tmp_path / "copy")
    (tmp_path / "copy" / "tokenizer.json").touch()
    templates = load_chat_templates(tmp_path / "copy", {})
    assert templates == served.context.text.chat_template.templates
    assert tokenizer_zip(tmp_path / "copy", templates) == packed
    assert Tokenizer(tmp_path / "copy").encode("hello") == served.engine.tokenizer.encode("hello")


async def test_what_is_not_here_says_so(serve: Serve) -> None:
    served = await serve()
    stub = engine_of(served)
    calls = {
        "Embed": pb.EmbedRequest(),
        "FlushCache": common_pb2.FlushCacheRequest(),
        "StartProfile": common_pb2.StartProfileRequest(),
        "StopProfile": common_pb2.StopProfileRequest(),
        "SubscribeKvEvents": common_pb2.SubscribeKvEventsRequest(),
    }
    for name, request in calls.items():
        code, details, _ = await refused(getattr(stub, name)(request))
        assert (code, details.split(":")[0]) == (Code.UNIMPLEMENTED, name)


async def test_a_refused_stream_is_a_status_and_nothing_before_it(serve: Serve) -> None:
    """grpcio's client cannot tell this from a stream that begins and then fails, at which gateways subscribe again."""
    served = await serve()
    service = pb.DESCRIPTOR.services_by_name["VllmEngine"].full_name
    assert await call_frames(served.server.address, f"/{service}/SubscribeKvEvents") == [(HEADERS, True)]
    begun = await call_frames(served.server.address, f"/{service}/GetTokenizer")
    assert (begun[0], begun[-1]) == ((HEADERS, False), (HEADERS, True))


async def test_every_call_of_the_service_is_there_and_health_knows_it(serve: Serve) -> None:
    served = await serve(api_key="secret")
    service = pb.DESCRIPTOR.services_by_name["VllmEngine"]
    for method in service.methods:
        call = served.channel.unary_unary(f"/{service.full_name}/{method.name}")
        assert (await refused(call(b"")))[0] is Code.UNAUTHENTICATED
    check = health_pb2.HealthCheckRequest(service=service.full_name)
    status = (await stub_of(health_pb2_grpc.HealthStub, served.channel).Check(check)).status
    assert status == health_pb2.HealthCheckResponse.SERVING
