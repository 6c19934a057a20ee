"""jaxinfer.v1.Jaxinfer by its stubs: what it answers, what it refuses, and how it ends."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jaxinfer.constraint import Constraint
from jaxinfer.engine.client.local import LocalEngineClient
from jaxinfer.engine.stats.counters import statistics_of
from jaxinfer.errors import ParameterError
from jaxinfer.llm import engine_config
from jaxinfer.rpc import jaxinfer_pb2 as pb
from jaxinfer.rpc.replies import _ENTRIES
from jaxinfer.rpc.serving import GrpcServer
from jaxinfer.server.app import make_app
from jaxinfer.server.context import CONTEXT
from jaxinfer.serving.config import ServerConfig
from jaxinfer.text import TextProcessor
from tests.children import worker_pids
from tests.engine.reading import until
from tests.llm import simulated
from tests.parameter_values import NUMBERS, another_value, values_out_of_range
from tests.rpc.public import Serve, collect, public, refused, stub_of, text_of, tokens_of
from tests.server.fake_engine import FakeEngine

Code = grpc.StatusCode


async def test_a_text_is_continued_and_the_last_message_tells_the_usage(serve: Serve) -> None:
    served = await serve()
    served.engine.cached_tokens = 1
    messages = await collect(served.stub.Generate(pb.GenerateRequest(text="hello", request_id="mine")))
    assert text_of(messages) == "hello world"
    assert [message.request_id for message in messages if message.request_id] == [messages[0].request_id] == ["mine"]
    assert messages[-2].choices[0].finish_reason == pb.FINISH_REASON_STOP
    assert messages[-1] == pb.GenerateResponse(
        usage=pb.Usage(prompt_tokens=1, completion_tokens=len(tokens_of(messages)), cached_tokens=1)
    )
    assert all(not message.HasField("usage") for message in messages[:-1])


async def test_the_request_id_comes_before_the_first_token(serve: Serve) -> None:
    served = await serve()
    served.engine.gate.clear()
    call = served.stub.Generate(pb.GenerateRequest(text="hello"))
    name = dict(await call.initial_metadata())["x-request-id"]
    served.engine.gate.set()
    messages = await collect(call)
    assert messages[0].request_id == name
    assert len(name) == 32


async def test_what_is_not_said_comes_from_the_model_then_from_the_defaults(serve: Serve, folder: Path) -> None:
    said = {"temperature": 0.25, "top_k": 7, "max_new_tokens": 9}
    (folder / "generation_config.json").write_text(json.dumps(said))
    served = await serve()
    await collect(served.stub.Generate(pb.GenerateRequest(text="hello")))
    await collect(served.stub.Generate(pb.GenerateRequest(text="hello", temperature=0.0, top_k=-1, max_tokens=4)))
    silent, loud = (request.sampling for request in served.engine.submitted)
    assert (silent.temperature, silent.top_k, silent.max_tokens, silent.n) == (0.25, 7, 9, 1)
    assert (loud.temperature, loud.top_k, loud.max_tokens) == (0.0, 0, 4)


async def test_max_tokens_goes_to_the_end_of_the_context_by_default(serve: Serve) -> None:
    served = await serve()
    await collect(served.stub.Generate(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 2, 3]))))
    assert served.engine.submitted[0].sampling.max_tokens is None
    assert list(served.engine.submitted[0].prompt_token_ids) == [1, 2, 3]


async def test_every_parameter_reaches_the_engine(serve: Serve) -> None:
    served = await serve()
    served.engine.info = served.engine.info._replace(scheduling_policy="priority")
    values: dict[str, Any] = {
        "n": 2, "max_tokens": 9, "min_tokens": 1, "temperature": 0.5, "top_p": 0.5, "top_k": 3, "min_p": 0.25,
        "seed": -5, "presence_penalty": 1.5, "frequency_penalty": -1.5, "repetition_penalty": 1.25, "logprobs": 2,
        "prompt_logprobs": 3, "stop_token_ids": [5], "stop": ["zz"], "logit_bias": {4: -2.5}, "ignore_eos": True,
        "include_stop_str_in_output": True, "skip_special_tokens": False,
    }  # fmt: skip
    rules = {"structured_outputs": {"choice": ["a", "b"]}, "allowed_token_ids": [4, 5], "bad_words": ["zz"]}
    others = {"priority": -3, "cache_salt": "mine", "add_special_tokens": False, "truncate_prompt_tokens": 2}
    every = set(pb.GenerateRequest.DESCRIPTOR.fields_by_name) - {"text", "token_ids", "request_id", "model", "sampling"}
    assert {*values, *others, *rules} == every
    await collect(served.stub.Generate(pb.GenerateRequest(text="hello world or", **values, **others, **rules)))
    (request,) = served.engine.submitted
    given = {name: getattr(request.sampling, name) for name in values}
    assert given == {**values, "stop_token_ids": (5,), "stop": ("zz",)}
    assert (request.priority, request.cache_salt, len(request.prompt_token_ids)) == (-3, "mine", 2)
    assert request.sampling.constraint == Constraint.choice(["a", "b"])
    assert (request.sampling.allowed_token_ids, request.sampling.bad_words) == ((4, 5), ("zz",))
    tokenizer = served.engine.tokenizer
    assert request.sampling.bad_token_ids == (tuple(tokenizer.encode("zz", add_special_tokens=False)),)


STRUCTURES: list[tuple[dict[str, Any], Constraint]] = [
    ({"json": '{"type": "null"}'}, Constraint.schema({"type": "null"})),
    ({"json": "true", "whitespace_pattern": " "}, Constraint.schema(True).with_whitespace(" ")),
    ({"json_object": True}, Constraint("json_object")),
    ({"regex": "a+"}, Constraint.text("regex", "a+")),
    ({"choice": ["a", "é"]}, Constraint.choice(["a", "é"])),
    ({"grammar": 'start: "a"'}, Constraint.text("grammar", 'start: "a"')),
]


@pytest.mark.parametrize(("said", "constraint"), STRUCTURES, ids=lambda value: str(value)[:20])
async def test_what_a_text_must_be_reaches_the_engine(
    serve: Serve, said: dict[str, Any], constraint: Constraint
) -> None:
    served = await serve()
    await collect(served.stub.Generate(pb.GenerateRequest(text="hello", structured_outputs=said)))
    found = served.engine.submitted[0].sampling.constraint
    assert found == constraint
    assert found is not None
    assert found.param in {f"structured_outputs.{name}" for name in said}


@pytest.mark.parametrize("name", [name for name in NUMBERS if name != "seed"])
async def test_a_number_may_come_by_its_name(serve: Serve, name: str) -> None:
    served = await serve()
    value = another_value(name)
    await collect(served.stub.Generate(pb.GenerateRequest(text="hello", sampling={name: value})))
    (request,) = served.engine.submitted
    assert getattr(request.sampling, name) == value
    for wrong in (*values_out_of_range(name), float("nan")):
        request = pb.GenerateRequest(text="hello", sampling={name: wrong})
        code, details, trailers = await refused(served.stub.Generate(request))
        assert (code, trailers["jaxinfer-field"]) == (Code.INVALID_ARGUMENT, name), details


async def test_stop_strings_and_ids_tell_what_ended_a_choice(serve: Serve) -> None:
    served = await serve()
    messages = await collect(served.stub.Generate(pb.GenerateRequest(text="a", stop=["wor"])))
    last = messages[-2].choices[-1]
    assert (text_of(messages), last.finish_reason, last.stop_string) == ("hello ", pb.FINISH_REASON_STOP, "wor")
    assert served.engine.stopped
    served.engine.stop_token = 7
    last = (await collect(served.stub.Generate(pb.GenerateRequest(text="a", stop_token_ids=[7]))))[-2].choices[-1]
    assert (last.WhichOneof("stop_reason"), last.stop_token_id) == ("stop_token_id", 7)


async def test_log_probabilities_of_choices_and_prompt(serve: Serve) -> None:
    served = await serve()
    served.engine.reply = lambda request, index: ["hello", "world"][index]
    served.engine.logprob = lambda index: -0.5 - index
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[4, 5, 6]), n=2, logprobs=1, prompt_logprobs=1)
    messages = await collect(served.stub.Generate(request))
    prompt = [entry for message in messages for entry in message.prompt_logprobs]
    assert [(entry.token_id, entry.logprob, entry.rank) for entry in prompt] == [(5, -1.5, 3), (6, -1.5, 3)]
    assert [(top.token_id, top.logprob) for top in prompt[0].top] == [(0, -0.5)]
    assert not messages[0].choices
    for index, text in enumerate(("hello", "world")):
        own = [choice for message in messages for choice in message.choices if choice.index == index]
        assert text_of(messages, index) == text
        assert [entry.token_id for choice in own for entry in choice.logprobs] == tokens_of(messages, index)
        assert {entry.logprob for choice in own for entry in choice.logprobs} == {-0.5 - index}


async def test_a_long_prompts_log_probabilities_come_in_messages_that_every_client_takes(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxinfer.rpc.replies._ENTRIES", 20)
    assert _ENTRIES * 15 < 4 * 2**20
    served = await serve()
    ids = list(range(50))
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), prompt_logprobs=1, max_tokens=1)
    parts = [message.prompt_logprobs for message in await collect(served.stub.Generate(request))]
    assert [len(part) for part in parts if part] == [10, 10, 10, 10, 9]
    assert [entry.token_id for part in parts for entry in part] == ids[1:]


REFUSED = [
    ({}, "prompt"), ({"text": ""}, "prompt"), ({"token_ids": pb.TokenIds()}, "prompt"),
    ({"token_ids": pb.TokenIds(ids=[10**6])}, "prompt"), ({"token_ids": pb.TokenIds(ids=[1] * 256)}, "prompt"),
    ({"text": "a" * 5000}, "prompt"), ({"n": 0}, "n"), ({"n": 129}, "n"), ({"n": 6}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 2**32 - 1}, "max_tokens"), ({"max_tokens": 300}, "max_tokens"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"temperature": -1.0}, "temperature"), ({"temperature": float("nan")}, "temperature"), ({"top_p": -0.5}, "top_p"),
    ({"top_k": -2}, "top_k"), ({"min_p": 2.0}, "min_p"), ({"presence_penalty": 3.0}, "presence_penalty"),
    ({"frequency_penalty": -3.0}, "frequency_penalty"), ({"repetition_penalty": 0.0}, "repetition_penalty"),
    ({"logprobs": 21}, "logprobs"), ({"logprobs": 20, "max_tokens": 200}, "logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"), ({"stop": [""]}, "stop"), ({"stop": ["x"] * 17}, "stop"),
    ({"stop_token_ids": [10**6]}, "stop_token_ids"), ({"stop_token_ids": list(range(40))}, "stop_token_ids"),
    ({"logit_bias": {10**6: 1.0}}, "logit_bias"), ({"logit_bias": {1: 101.0}}, "logit_bias"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"), ({"cache_salt": ""}, "cache_salt"),
    ({"request_id": "a b"}, "request_id"), ({"request_id": ""}, "request_id"), ({"priority": -(2**31)}, "priority"),
    ({"sampling": {"top_k": 1.5}}, "top_k"), ({"sampling": {"top_p": 0.5}, "top_p": 0.5}, "top_p"),
    ({"sampling": {"seed": 1}}, "sampling"), ({"sampling": {"ignore_eos": 1}}, "sampling"),
    ({"sampling": {"top_q": 1}}, "sampling"), ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
    ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "a", "grammar": "b"}}, "structured_outputs"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
    ({"structured_outputs": {"choice": ["a"] * 1001}}, "structured_outputs.choice"),
    ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
    ({"allowed_token_ids": [10**6]}, "allowed_token_ids"), ({"bad_words": [""]}, "bad_words"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "field"), REFUSED, ids=lambda value: str(value)[:40])
async def test_what_is_wrong_is_refused_with_its_name(serve: Serve, values: dict[str, Any], field: str) -> None:
    served = await serve(max_prompt_chars=4096, max_choices=5, max_logprob_entries=2000)
    if not {"text", "token_ids"} & set(values) and field != "prompt":
        values = {"text": "hello", **values}
    code, details, trailers = await refused(served.stub.Generate(pb.GenerateRequest(**values)))
    assert code is Code.INVALID_ARGUMENT
    assert details.startswith(f"{field}: ")
    assert trailers["jaxinfer-field"] == field
    assert not served.engine.submitted


async def test_a_field_from_the_future_is_refused_and_not_ignored(serve: Serve) -> None:
    served = await serve()
    known = pb.GenerateRequest(text="hello").SerializeToString()
    call = served.channel.unary_stream("/jaxinfer.v1.Jaxinfer/Generate", bytes, bytes)
    code, details, _ = await refused(call(known + b"\xc0\x3e\x01"))  # field 1000, a varint
    assert (code, details) == (
        Code.INVALID_ARGUMENT, "GenerateRequest.1000: is a field that this server does not know",
    )  # fmt: skip
    assert not served.engine.submitted


async def test_other_refusals_have_their_status(serve: Serve) -> None:
    served = await serve(max_body_bytes=2000)
    generate = served.stub.Generate
    code, details, _ = await refused(generate(pb.GenerateRequest(text="a", model="other")))
    assert (code, "'other' is not served here" in details) == (Code.NOT_FOUND, True)
    code, _, _ = await refused(generate(pb.GenerateRequest(text="a" * 3000)))
    assert code is Code.RESOURCE_EXHAUSTED
    served.engine.max_waiting = 0
    code, details, trailers = await refused(generate(pb.GenerateRequest(text="a")))
    assert (code, trailers["jaxinfer-code"], trailers["retry-after"]) == (Code.RESOURCE_EXHAUSTED, "queue_full", "7")
    served.engine.max_waiting = 9
    served.engine.reply = None  # nobody foresaw this
    code, details, _ = await refused(generate(pb.GenerateRequest(text="a")))
    assert (code, details) == (Code.INTERNAL, "the server failed on this request; its log says why")


async def test_what_a_client_sent_comes_back_cut_so_that_every_client_takes_the_error(serve: Serve) -> None:
    served = await serve()
    call = served.stub.Generate(pb.GenerateRequest(text="a", model="\N{SNOWMAN WITHOUT SNOW}" * 5000))
    code, details, _ = await refused(call)
    assert (code, len(details) < 1000, "is not served here" in details) == (Code.NOT_FOUND, True, True)


async def test_a_dead_engine_is_unavailable_and_a_failed_request_internal(serve: Serve) -> None:
    served = await serve()
    served.engine.gate.clear()
    call = served.stub.Generate(pb.GenerateRequest(text="a"))
    await call.initial_metadata()
    served.engine.fail_requests("the step was poisoned")
    code, details, trailers = await refused(call)
    assert (code, "the step was poisoned" in details, trailers["jaxinfer-code"]) == (
        Code.INTERNAL,
        True,
        "engine_error",
    )
    call = served.stub.Generate(pb.GenerateRequest(text="a"))
    await call.initial_metadata()
    served.engine.fail_requests("no token is left", "bad_words")
    code, details, trailers = await refused(call)
    assert (code, details, trailers["jaxinfer-field"]) == (
        Code.INVALID_ARGUMENT, "bad_words: no token is left", "bad_words",
    )  # fmt: skip
    call = served.stub.Generate(pb.GenerateRequest(text="a"))
    await call.initial_metadata()
    served.engine.die()
    assert (await refused(call))[0] is Code.UNAVAILABLE
    assert (await refused(served.stub.Generate(pb.GenerateRequest(text="a"))))[0] is Code.UNAVAILABLE
    assert (await refused(served.stub.GetStatistics(pb.GetStatisticsRequest())))[0] is Code.UNAVAILABLE


async def test_the_limit_of_open_requests_is_one_for_http_and_grpc(serve: Serve) -> None:
    served = await serve(max_open_requests=2)
    served.engine.gate.clear()
    with served.context.admission.place():  # as a request by HTTP does
        call = served.stub.Generate(pb.GenerateRequest(text="a"))
        await call.initial_metadata()
        code, _, trailers = await refused(served.stub.Generate(pb.GenerateRequest(text="a")))
        assert (code, trailers["jaxinfer-code"]) == (Code.RESOURCE_EXHAUSTED, "too_many_requests")
        assert (await refused(served.stub.Tokenize(pb.TokenizeRequest(text="a"))))[0] is Code.RESOURCE_EXHAUSTED
    served.engine.gate.set()
    await collect(call)
    await collect(served.stub.Generate(pb.GenerateRequest(text="a")))


async def test_the_key_is_asked_for_but_not_by_health_and_reflection(serve: Serve) -> None:
    served = await serve(api_key="secret")
    for metadata in ((), (("authorization", "Bearer wrong"),), (("authorization", "secret"),)):
        for call in (
            served.stub.Generate(pb.GenerateRequest(text="a"), metadata=metadata),
            served.stub.Abort(pb.AbortRequest(request_id="a"), metadata=metadata),
            served.stub.GetModel(pb.GetModelRequest(), metadata=metadata),
            served.stub.GetStatistics(pb.GetStatisticsRequest(), metadata=metadata),
        ):
            assert (await refused(call))[0] is Code.UNAUTHENTICATED
    assert not served.engine.submitted
    right = (("authorization", "Bearer secret"),)
    assert text_of(await collect(served.stub.Generate(pb.GenerateRequest(text="a"), metadata=right))) == "hello world"
    health = stub_of(health_pb2_grpc.HealthStub, served.channel)
    assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING


async def test_a_client_that_cancels_or_goes_frees_its_request(serve: Serve) -> None:
    served = await serve()
    served.engine.gate.clear()
    call = served.stub.Generate(pb.GenerateRequest(text="a", n=3))
    await call.initial_metadata()
    assert len(served.engine.active) == 1
    call.cancel()
    await until(lambda: not served.engine.active)
    channel = grpc.aio.insecure_channel(served.server.address)
    gone = type(served.stub)(channel).Generate(pb.GenerateRequest(text="a"))
    await gone.initial_metadata()
    assert len(served.engine.active) == 1
    await channel.close()
    await until(lambda: not served.engine.active)
    assert len(served.engine.aborted) == 2


async def test_abort_ends_every_call_of_an_id_and_no_other(serve: Serve) -> None:
    served = await serve()
    served.engine.gate.clear()
    calls = [served.stub.Generate(pb.GenerateRequest(text="a", request_id=name)) for name in ("x", "x", "y")]
    for call in calls:
        await call.initial_metadata()
    assert (await served.stub.Abort(pb.AbortRequest(request_id="nobody"))).aborted == 0
    assert (await served.stub.Abort(pb.AbortRequest(request_id="x"))).aborted == 2
    for call in calls[:2]:
        code, details, _ = await refused(call)
        assert (code, details) == (Code.CANCELLED, "the request was aborted")
    assert len(served.engine.active) == 1
    served.engine.gate.set()
    assert text_of(await collect(calls[2])) == "hello world"
    assert (await served.stub.Abort(pb.AbortRequest(request_id="y"))).aborted == 0


async def test_blocks_come_back_however_a_stream_ends(folder: Path) -> None:
    engine = LocalEngineClient(simulated.build_engine(engine_config(str(folder), None, {"max_num_seqs": 8})).core)
    async with public(folder, engine) as served:

        async def one(i: int) -> None:
            prompt, name = [i % 7, 3, 4], f"r{i}"
            request = pb.GenerateRequest(
                token_ids=pb.TokenIds(ids=prompt), max_tokens=40, seed=1, n=1 + i % 2, ignore_eos=True, request_id=name
            )
            call = served.stub.Generate(request)
            if i % 4 == 0:
                messages = await collect(call)
                for choice in range(request.n):
                    assert tokens_of(messages, choice) == simulated.right_tokens(prompt, 40, seed=1, index=choice)
            elif i % 4 == 1:
                await call.read()
                call.cancel()
            elif i % 4 == 2:
                await call.initial_metadata()
                await served.stub.Abort(pb.AbortRequest(request_id=name))
            else:
                await asyncio.sleep(0.001 * i)
                call.cancel()

        await asyncio.gather(*(one(i) for i in range(60)))
        await until(lambda: engine.stats().scheduler.running + engine.stats().scheduler.waiting == 0)
        await until(lambda: not engine._streams.request_ids)  # whoever reads a stream ends a moment later
        assert engine.stats().kv.blocks_used == 0


async def test_tokens_of_a_text_and_back(serve: Serve) -> None:
    served = await serve()
    tokenizer, text = served.engine.tokenizer, "hello wörld" * 2000
    ids = (await served.stub.Tokenize(pb.TokenizeRequest(text=text))).token_ids
    assert list(ids) == tokenizer.encode(text)
    assert (await served.stub.Detokenize(pb.DetokenizeRequest(token_ids=ids))).text == text
    special = pb.DetokenizeRequest(token_ids=[263, 104], skip_special_tokens=True)
    whole = pb.DetokenizeRequest(token_ids=[263, 104])
    shown = (await served.stub.Detokenize(special)).text
    assert (await served.stub.Detokenize(whole)).text == "<|bos|>" + shown
    code, _, trailers = await refused(served.stub.Detokenize(pb.DetokenizeRequest(token_ids=[5, 268])))
    assert (code, trailers["jaxinfer-field"]) == (Code.INVALID_ARGUMENT, "token_ids")
    served = await serve(max_prompt_chars=5)
    code, _, trailers = await refused(served.stub.Tokenize(pb.TokenizeRequest(text="hello!")))
    assert (code, trailers["jaxinfer-field"]) == (Code.INVALID_ARGUMENT, "text")


async def test_the_model_and_the_statistics_are_told(serve: Serve) -> None:
    served = await serve(served_model_name="named")
    model, info = await served.stub.GetModel(pb.GetModelRequest()), served.engine.info
    assert (model.model, model.max_model_len, model.vocab_size) == ("named", info.max_model_len, info.vocab_size)
    assert (model.max_num_seqs, model.block_size, model.num_blocks) == (8, 16, 64)
    assert model.eos_token_id == served.engine.tokenizer.eos_token_id
    await collect(served.stub.Generate(pb.GenerateRequest(text="hello", model="named")))
    values = (await served.stub.GetStatistics(pb.GetStatisticsRequest())).values
    stats = served.engine.stats()
    same = (
        "running", "waiting", "preemptions", "prefix_queries", "prefix_hits", "prompt_tokens", "generation_tokens",
        "steps", "compiles_after_ready", "step_faults",
    )  # fmt: skip
    flat = {one.name: one.value for one in statistics_of(stats)}
    promised = {name: flat[name] for name in same}
    promised |= {"kv_pages_used": stats.kv.blocks_used, "kv_pages_total": stats.kv.blocks_total}
    assert {name: values[name] for name in promised} == promised
    assert values["waiting_for_pages"] == stats.scheduler.waiting_for_blocks
    assert values["generation_tokens"] > 0


async def test_health_follows_the_engine_and_watchers_are_told(serve: Serve) -> None:
    served = await serve()
    health, status = stub_of(health_pb2_grpc.HealthStub, served.channel), health_pb2.HealthCheckResponse
    for service in ("", "jaxinfer.v1.Jaxinfer"):
        assert (await health.Check(health_pb2.HealthCheckRequest(service=service))).status == status.SERVING
    unknown = health_pb2.HealthCheckRequest(service="nobody")
    assert (await refused(health.Check(unknown)))[0] is Code.NOT_FOUND
    assert (await health.Watch(unknown).read()).status == status.SERVICE_UNKNOWN
    watch = health.Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == status.SERVING
    served.engine.die()
    assert (await watch.read()).status == status.NOT_SERVING
    assert (await health.Check(health_pb2.HealthCheckRequest())).status == status.NOT_SERVING


async def test_a_server_that_ends_lets_streams_end_tells_watchers_and_waits_for_nobody_else(serve: Serve) -> None:
    served = await serve()
    served.engine.gate.clear()
    watch = stub_of(health_pb2_grpc.HealthStub, served.channel).Watch(health_pb2.HealthCheckRequest())
    await watch.read()
    call = served.stub.Generate(pb.GenerateRequest(text="a"))
    await call.initial_metadata()
    stopping = asyncio.create_task(served.server.stop(30))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert (await refused(served.stub.Generate(pb.GenerateRequest(text="a"))))[0] is Code.UNAVAILABLE
    assert not stopping.done()
    served.engine.gate.set()
    assert text_of(await collect(call)) == "hello world"
    async with asyncio.timeout(10):
        await stopping


async def test_a_port_that_is_taken_is_an_error_and_the_server_can_be_stopped(folder: Path) -> None:
    text = TextProcessor.from_folder(folder)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        options = ServerConfig(grpc_port=taken.getsockname()[1])
        context = make_app(FakeEngine(text.tokenizer), text, options)[CONTEXT]
        server = GrpcServer()
        with pytest.raises(ParameterError, match="grpc_port: cannot listen"):
            await server.start(context)
        async with asyncio.timeout(10):
            await server.stop(30)


async def test_a_calls_own_deadline_bounds_its_wait(serve: Serve) -> None:
    served = await serve()
    for timeout in (None, 300.0, 5.0):
        await collect(served.stub.Generate(pb.GenerateRequest(text="a"), timeout=timeout))
    waits = [request.max_wait for request in served.engine.submitted]
    assert waits[:2] == [20.0, 20.0]
    assert waits[2] == pytest.approx(5.0, abs=2.0)


@pytest.mark.parametrize("method", ["Generate", "Tokenize", "GetModel"])
@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\x02\xff\xfe", b"\x0a\x7f"])
async def test_a_message_that_cannot_be_read_is_an_invalid_argument(
    serve: Serve, caplog, method: str, data: bytes
) -> None:
    served = await serve()
    path = f"/jaxinfer.v1.Jaxinfer/{method}"
    kind = served.channel.unary_stream if method == "Generate" else served.channel.unary_unary
    assert (await refused(kind(path)(data)))[0] is Code.INVALID_ARGUMENT
    assert caplog.records == []


async def test_long_texts_and_many_ids_are_read_elsewhere(serve: Serve) -> None:
    served = await serve()
    text = "hello world " * 30_000
    ids = served.engine.tokenizer.encode(text)
    assert list((await served.stub.Tokenize(pb.TokenizeRequest(text=text))).token_ids) == ids
    assert (await served.stub.Detokenize(pb.DetokenizeRequest(token_ids=ids))).text == text
    assert len(worker_pids()) == 1


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids"),
        ({"logit_bias": dict.fromkeys(range(301), 1.0)}, "logit_bias"),
        ({"allowed_token_ids": [1] * 1000}, "allowed_token_ids"),
        ({"bad_words": ["x"] * 129}, "bad_words"),
    ],
)
async def test_lists_are_counted_before_they_are_copied(serve: Serve, said: dict[str, Any], field: str) -> None:
    served = await serve()
    code, _, trailers = await refused(served.stub.Generate(pb.GenerateRequest(text="a", **said)))
    assert (code, trailers["jaxinfer-field"]) == (Code.INVALID_ARGUMENT, field)
