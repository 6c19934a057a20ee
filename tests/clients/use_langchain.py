"""langchain-openai: `ChatOpenAI` and its tools."""
# pyright: reportMissingImports=false

import asyncio

import openai
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.output_parsers import PydanticToolsParser
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
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


@tool
def get_weather(city: str) -> str:
    """Get the weather"""
    assert city == "Paris"
    return WEATHER_RESULT


class book_table(BaseModel):
    """Book a table"""  # both are the tool's, in words that the demo model knows

    name: str
    seats: int


def chat_model(server: Server, **options) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=server.base_url, api_key="none", model=server.model, max_retries=0, timeout=60,
        **{"temperature": 0, **options},
    )  # fmt: skip


@scenario
def invoke(server: Server) -> None:
    message = chat_model(server).invoke(SUM_QUESTION)
    assert message.content == SUM_ANSWER
    usage = message.usage_metadata
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 2
    assert message.response_metadata["finish_reason"] == "stop"


@scenario
def stream_with_usage(server: Server) -> None:
    chunks = list(chat_model(server, stream_usage=True).stream(SUM_QUESTION))
    assert len([chunk for chunk in chunks if chunk.content]) > 1
    whole = sum(chunks[1:], chunks[0])
    assert whole.content == SUM_ANSWER
    assert whole.usage_metadata["output_tokens"] > 0


@scenario
def a_batch(server: Server) -> None:
    assert [one.content for one in chat_model(server).batch([SUM_QUESTION] * 6)] == [SUM_ANSWER] * 6


@scenario
def tool_loop(server: Server) -> None:
    assert "21" in answer_by_a_tool(chat_model(server).bind_tools([get_weather])).content


@scenario
def tool_loop_with_strict_tools(server: Server) -> None:
    bound = chat_model(server).bind_tools([get_weather], strict=True, parallel_tool_calls=False)
    assert bound.kwargs["tools"][0]["function"]["strict"] is True
    assert "21" in answer_by_a_tool(bound).content


def answer_by_a_tool(bound):
    history = [HumanMessage(WEATHER_QUESTION)]
    history.append(bound.invoke(history))
    (call,) = history[-1].tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    history.append(get_weather.invoke(call))
    assert isinstance(history[-1], ToolMessage)
    return bound.invoke(history)


@scenario
def a_tool_call_in_a_stream_goes_back(server: Server) -> None:
    bound = chat_model(server).bind_tools([get_weather])
    chunks = list(bound.stream([HumanMessage(WEATHER_QUESTION)]))
    called: AIMessageChunk = sum(chunks[1:], chunks[0])
    (call,) = called.tool_calls
    history = [HumanMessage(WEATHER_QUESTION), called, get_weather.invoke(call)]
    assert "21" in "".join(chunk.content for chunk in bound.stream(history))


@scenario
def a_pydantic_class_as_a_tool(server: Server) -> None:
    chain = chat_model(server).bind_tools([book_table], strict=True) | PydanticToolsParser(tools=[book_table])
    assert chain.invoke("Book a table with name Anna and seats 4.") == [book_table(name="Anna", seats=4)]


@scenario
def log_probabilities(server: Server) -> None:
    message = chat_model(server, logprobs=True, top_logprobs=2).invoke(SUM_QUESTION)
    tokens = message.response_metadata["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens).startswith(SUM_ANSWER)
    assert all(len(token["top_logprobs"]) == 2 for token in tokens)


@scenario
def reasoning_effort(server: Server) -> None:
    assert "42" in chat_model(server, reasoning_effort="low").invoke(SUM_QUESTION).content
    assert chat_model(server, reasoning_effort="none").invoke(SUM_QUESTION).content == SUM_ANSWER


@scenario
def completions(server: Server) -> None:
    model = OpenAI(base_url=server.base_url, api_key="none", model=server.model, temperature=0, max_tokens=4)
    assert model.invoke("Hello there")
    assert "".join(model.stream("Hello there")) == model.invoke("Hello there")


@scenario
async def a_cancelled_stream_frees_its_request(server: Server) -> None:
    before = await asyncio.to_thread(server.aborted)
    model = chat_model(server, max_completion_tokens=1900, extra_body={"ignore_eos": True})
    stream = model.astream(SUM_QUESTION)
    await anext(stream)
    await stream.aclose()
    await asyncio.to_thread(wait_until, lambda: server.aborted() == before + 1)


@scenario
def errors_are_those_of_openai(server: Server) -> None:
    absent = Server(server.url, "absent")
    assert refused(openai.NotFoundError, lambda: chat_model(absent).invoke("hi")).param == "model"
    hot = chat_model(server, temperature=1000)
    assert refused(openai.BadRequestError, lambda: hot.invoke("hi")).param == "temperature"


@scenario
def a_prompt_that_is_too_long(server: Server) -> None:
    """Agents shorten their history on this exception."""
    refused(ContextOverflowError, lambda: chat_model(server).invoke("word " * 4000))


@scenario
def structured_answers(server: Server) -> None:
    for method in ("function_calling", "json_schema"):
        structured = chat_model(server).with_structured_output(book_table, method=method)
        assert isinstance(structured.invoke("Book a table with name Anna and seats 4."), book_table)


@scenario
def responses(server: Server) -> None:
    model = chat_model(server, use_responses_api=True)
    message = model.invoke(SUM_QUESTION)
    assert message.text == SUM_ANSWER
    assert message.usage_metadata["output_tokens"] > 0
    chunks = list(model.stream(SUM_QUESTION))
    assert len([chunk for chunk in chunks if chunk.text]) > 1
    assert "".join(chunk.text for chunk in chunks) == SUM_ANSWER
    assert "21" in answer_by_a_tool(model.bind_tools([get_weather])).text


@scenario
def stored_responses(server: Server) -> None:
    model = chat_model(server, use_responses_api=True, use_previous_response_id=True)
    history = [HumanMessage(SUM_QUESTION)]
    history.append(model.invoke(history))
    assert "7" in model.invoke([*history, HumanMessage("What is 3 plus 4?")]).text


@scenario
def thinking_in_responses(server: Server) -> None:
    model = chat_model(server, use_responses_api=True, reasoning={"effort": "low", "summary": "auto"})
    history = [HumanMessage(SUM_QUESTION)]
    history.append(model.invoke(history))
    assert "42" in history[-1].text
    assert "7" in model.invoke([*history, HumanMessage("What is 3 plus 4?")]).text


if __name__ == "__main__":
    main()
