"""LlamaIndex, by `OpenAILike`: chat, streams, tools, and an agent."""
# pyright: reportMissingImports=false

import asyncio
import json

import openai
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel
from scenarios import (
    SUM_ANSWER,
    SUM_QUESTION,
    WEATHER_QUESTION,
    WEATHER_RESULT,
    Server,
    main,
    refused,
    scenario,
    wait_until,
)


class Reservation(BaseModel):
    """Book a table"""

    name: str
    seats: int


def get_weather(city: str) -> str:
    assert city == "Paris"
    return WEATHER_RESULT


WEATHER = FunctionTool.from_defaults(fn=get_weather, name="get_weather", description="Get the weather")


def model(server: Server, **options) -> OpenAILike:
    defaults = {"temperature": 0, "is_chat_model": True, "is_function_calling_model": True}
    return OpenAILike(
        model=server.model, api_base=server.base_url, api_key="none", context_window=2048, max_retries=0, timeout=60,
        **{**defaults, **options},
    )  # fmt: skip


@scenario
def chat(server: Server) -> None:
    reply = model(server).chat([ChatMessage(role="user", content=SUM_QUESTION)])
    assert reply.message.content == SUM_ANSWER
    counts = reply.additional_kwargs
    assert counts["total_tokens"] == counts["prompt_tokens"] + counts["completion_tokens"] > 2


@scenario
def stream_with_usage(server: Server) -> None:
    llm = model(server, additional_kwargs={"stream_options": {"include_usage": True}})
    pieces = list(llm.stream_chat([ChatMessage(role="user", content=SUM_QUESTION)]))
    assert "".join(piece.delta or "" for piece in pieces) == SUM_ANSWER
    assert pieces[-1].message.content == SUM_ANSWER
    assert pieces[-1].raw.usage.completion_tokens > 0


@scenario
async def many_at_once(server: Server) -> None:
    llm = model(server)
    replies = await asyncio.gather(*(llm.acomplete(SUM_QUESTION) for _ in range(6)))
    assert [reply.text for reply in replies] == [SUM_ANSWER] * 6


@scenario
def tool_loop(server: Server) -> None:
    for strict in (False, True):
        answer_by_a_tool(model(server, strict=strict))


def answer_by_a_tool(llm: OpenAILike) -> None:
    history = [ChatMessage(role="user", content=WEATHER_QUESTION)]
    called = llm.chat_with_tools([WEATHER], chat_history=history)
    (selection,) = llm.get_tool_calls_from_response(called)
    assert (selection.tool_name, selection.tool_kwargs) == ("get_weather", {"city": "Paris"})
    result = ChatMessage(role="tool", content=WEATHER_RESULT, additional_kwargs={"tool_call_id": selection.tool_id})
    answer = llm.chat_with_tools([WEATHER], chat_history=[*history, called.message, result])
    assert "21" in answer.message.content


@scenario
async def an_agent_with_a_tool(server: Server) -> None:
    """The agent streams, and sends its own message back with the tool's result."""
    agent = FunctionAgent(tools=[WEATHER], llm=model(server), system_prompt=None)
    reply = await agent.run(WEATHER_QUESTION)
    assert [call.tool_name for call in reply.tool_calls] == ["get_weather"]
    assert "21" in reply.response.content


@scenario
def log_probabilities(server: Server) -> None:
    reply = model(server, logprobs=True, top_logprobs=2).chat([ChatMessage(role="user", content=SUM_QUESTION)])
    assert "".join(token.token for group in reply.logprobs for token in group[:1]).startswith(SUM_ANSWER)


@scenario
def completions(server: Server) -> None:
    llm = model(server, is_chat_model=False, max_tokens=4)
    text = llm.complete("Hello there").text
    assert text
    assert "".join(piece.delta for piece in llm.stream_complete("Hello there")) == text


@scenario
async def a_cancelled_stream_frees_its_request(server: Server) -> None:
    before = await asyncio.to_thread(server.aborted)
    llm = model(server, max_tokens=1900, additional_kwargs={"extra_body": {"ignore_eos": True}})
    begun = asyncio.Event()

    async def read() -> None:
        async for _ in await llm.astream_complete(SUM_QUESTION):
            begun.set()

    # LlamaIndex leaves the connection of a stream open that is only closed: it takes its task to be cancelled.
    reading = asyncio.create_task(read())
    await begun.wait()
    reading.cancel()
    await asyncio.to_thread(wait_until, lambda: server.aborted() == before + 1)


@scenario
def errors_are_those_of_openai(server: Server) -> None:
    absent = Server(server.url, "absent")
    assert refused(openai.NotFoundError, lambda: model(absent).complete("hi")).param == "model"
    hot = model(server, additional_kwargs={"top_p": 7})
    assert refused(openai.BadRequestError, lambda: hot.complete("hi")).param == "top_p"


@scenario
def structured_answers(server: Server) -> None:
    ask = PromptTemplate("Book a table with name Anna and seats 4.")
    assert isinstance(model(server).structured_predict(Reservation, ask), Reservation)


@scenario
def an_object_by_an_unforced_tool(server: Server) -> None:
    """The model chooses to call the tool that makes the object."""
    tool = FunctionTool.from_defaults(
        fn=lambda **fields: json.dumps(fields), name="book_table", description="Book a table", fn_schema=Reservation
    )
    llm = model(server)
    called = llm.chat_with_tools([tool], user_msg="Book a table with name Anna and seats 4.", tool_required=False)
    (selection,) = llm.get_tool_calls_from_response(called)
    assert Reservation(**selection.tool_kwargs) == Reservation(name="Anna", seats=4)


if __name__ == "__main__":
    main()
