"""JaxinferClient: our own client of the public service."""

import contextlib

import pytest

from jaxinfer.errors import EngineDeadError, JaxinferError, ParameterError, QueueFullError
from jaxinfer.rpc import jaxinfer_pb2 as pb
from jaxinfer.rpc.client import GenerateFields, JaxinferClient
from tests.engine.reading import until
from tests.rpc.public import Serve, text_of


async def test_everything_that_it_can_ask(serve: Serve) -> None:
    served = await serve(api_key="secret")
    async with JaxinferClient(served.server.address, api_key="secret") as client:
        assert (
            text_of([message async for message in client.generate("hello", max_tokens=None, stop=["wor"])]) == "hello "
        )
        messages = [message async for message in client.generate([1, 2], n=2, seed=3)]
        assert (text_of(messages, 1), messages[-1].usage.prompt_tokens) == ("hello world", 2)
        assert await client.tokenize("hello") == served.engine.tokenizer.encode("hello")
        assert await client.detokenize([259]) == served.engine.tokenizer.decode([259])
        assert (await client.model()).model == "fake"
        assert (await client.statistics())["running"] == 0
        assert await client.abort("nobody") == 0


async def test_errors_are_ours(serve: Serve) -> None:
    served = await serve(api_key="secret")
    async with JaxinferClient(served.server.address) as client:
        with pytest.raises(JaxinferError, match="UNAUTHENTICATED: the API key"):
            await client.model()
    async with JaxinferClient(served.server.address, api_key="secret") as client:
        for options, field in (({"top_p": 2.0}, "top_p"), ({"n": -1}, "n"), ({"temprature": 1}, "temprature")):
            with pytest.raises(ParameterError) as wrong:
                await anext(client.generate("hello", **options))  # pyright: ignore[reportArgumentType]
            assert wrong.value.param == field
        served.engine.max_waiting = 0
        with pytest.raises(QueueFullError, match="0 requests are waiting already; try again in 7 s") as full:
            await anext(client.generate("hello"))
        assert full.value.retry_after == 7
        served.engine.die()
        with pytest.raises(EngineDeadError):
            await client.statistics()


async def test_a_reader_that_leaves_frees_its_request_and_abort_ends_one(serve: Serve) -> None:
    served = await serve()
    served.engine.reply = "hello world " * 1000  # more than comes before anybody looks
    async with JaxinferClient(served.server.address) as client:
        async with contextlib.aclosing(client.generate("hello", n=3)) as stream:
            await anext(stream)
            served.engine.gate.clear()
            assert served.engine.active
        await until(lambda: not served.engine.active)
        served.engine.gate.set()
        stream = client.generate("hello", request_id="mine")
        await anext(stream)
        served.engine.gate.clear()
        assert await client.abort("mine") == 1
        with pytest.raises(JaxinferError, match="aborted"):
            [message async for message in stream]


def test_it_can_say_everything_that_the_service_takes() -> None:
    fields = set(pb.GenerateRequest.DESCRIPTOR.fields_by_name)
    assert set(GenerateFields.__annotations__) == fields - {"text", "token_ids"}
