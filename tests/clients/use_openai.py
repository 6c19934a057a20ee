"""The openai package for Python: its plain calls and its helpers."""
# pyright: reportMissingImports=false

import asyncio
import json
import math

import openai
from pydantic import BaseModel
from scenarios import (
    SUM_ANSWER,
    SUM_QUESTION,
    WEATHER_QUESTION,
    WEATHER_RESULT,
    WEATHER_TOOL,
    Server,
    main,
    refused,
    scenario,
    wait_until,
)

SUM = [{"role": "user", "content": SUM_QUESTION}]
WEATHER = [{"role": "user", "content": WEATHER_QUESTION}]


class GetWeather(BaseModel):
    """Get the weather"""

    city: str


def connect(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0, timeout=60)


@scenario
def models_are_listed(server: Server) -> None:
    client = connect(server)
    assert [model.id for model in client.models.list()] == [server.model]
    assert client.models.retrieve(server.model).id == server.model


@scenario
def chat(server: Server) -> None:
    reply = connect(server).chat.completions.create(model=server.model, messages=SUM, temperature=0)
    assert reply.choices[0].message.content == SUM_ANSWER
    assert reply.choices[0].finish_reason == "stop"
    usage = reply.usage
    assert usage.prompt_tokens > 0
    assert usage.completion_tokens > 0
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


@scenario
def stream_with_usage(server: Server) -> None:
    stream = connect(server).chat.completions.create(
        model=server.model, messages=SUM, temperature=0, stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
    )  # fmt: skip
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == SUM_ANSWER
    assert chunks[-1].usage.completion_tokens > 0
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


@scenario
def tool_loop(server: Server) -> None:
    client = connect(server)
    options = {"model": server.model, "tools": [WEATHER_TOOL], "temperature": 0}
    called = client.chat.completions.create(messages=WEATHER, **options).choices[0]
    assert called.finish_reason == "tool_calls"
    (call,) = called.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    result = {"role": "tool", "tool_call_id": call.id, "content": WEATHER_RESULT}
    answer = client.chat.completions.create(messages=[*WEATHER, called.message, result], **options).choices[0]
    assert answer.finish_reason == "stop"
    assert "21" in answer.message.content


@scenario
def tool_loop_of_the_stream_helper(server: Server) -> None:
    """The helper makes the tool strict, and adds `parsed` and `parsed_arguments` to the message that goes back."""
    client = connect(server)
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    assert tool["function"]["strict"] is True
    options = {"model": server.model, "tools": [tool], "temperature": 0}
    with client.chat.completions.stream(messages=WEATHER, **options) as stream:
        message = stream.get_final_completion().choices[0].message
    (call,) = message.tool_calls
    assert call.function.parsed_arguments == GetWeather(city="Paris")
    result = {"role": "tool", "tool_call_id": call.id, "content": WEATHER_RESULT}
    with client.chat.completions.stream(messages=[*WEATHER, message, result], **options) as stream:
        assert "21" in stream.get_final_completion().choices[0].message.content


@scenario
def tool_loop_of_the_parse_helper(server: Server) -> None:
    client = connect(server)
    tools = [openai.pydantic_function_tool(GetWeather, name="get_weather")]
    options = {"model": server.model, "tools": tools, "temperature": 0}
    message = client.chat.completions.parse(messages=WEATHER, **options).choices[0].message
    (call,) = message.tool_calls
    assert call.function.parsed_arguments == GetWeather(city="Paris")
    result = {"role": "tool", "tool_call_id": call.id, "content": WEATHER_RESULT}
    sent = [*WEATHER, message.model_dump(), result]
    assert "21" in client.chat.completions.parse(messages=sent, **options).choices[0].message.content


@scenario
def log_probabilities(server: Server) -> None:
    choice = connect(server).chat.completions.create(
        model=server.model, messages=SUM, temperature=0, logprobs=True, top_logprobs=3
    ).choices[0]  # fmt: skip
    tokens = choice.logprobs.content
    assert b"".join(bytes(token.bytes) for token in tokens).decode().startswith(SUM_ANSWER)
    for token in tokens:
        alternatives = [math.exp(other.logprob) for other in token.top_logprobs]
        assert len(alternatives) == 3
        assert alternatives == sorted(alternatives, reverse=True)
        assert sum(alternatives) <= 1 + 1e-5
        assert token.top_logprobs[0].token == token.token, "greedy takes the likeliest token"


@scenario
def completions(server: Server) -> None:
    scored = connect(server).completions.create(
        model=server.model, prompt="Hello there", echo=True, logprobs=2, max_tokens=4, temperature=0
    ).choices[0]  # fmt: skip
    assert scored.text.startswith("Hello there")
    assert "".join(scored.logprobs.tokens) == scored.text
    assert scored.logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in scored.logprobs.token_logprobs[1:])


@scenario
def several_choices_and_a_seed(server: Server) -> None:
    def sample() -> list[str]:
        reply = connect(server).chat.completions.create(
            model=server.model, messages=[{"role": "user", "content": "Tell me a story."}], n=2, seed=7,
            temperature=1, max_completion_tokens=24,
        )  # fmt: skip
        return [choice.message.content for choice in reply.choices]

    first = sample()
    assert len(set(first)) == 2
    assert sample() == first


@scenario
def thinking_by_reasoning_effort(server: Server) -> None:
    create = connect(server).chat.completions.create
    thought = create(model=server.model, messages=SUM, temperature=0, reasoning_effort="low").choices[0].message
    assert thought.reasoning_content
    assert "42" in thought.content
    plain = create(model=server.model, messages=SUM, temperature=0, reasoning_effort="none").choices[0].message
    assert not getattr(plain, "reasoning_content", None)
    assert plain.content == SUM_ANSWER


@scenario
def fields_of_the_schema_without_effect(server: Server) -> None:
    reply = connect(server).chat.completions.create(
        model=server.model, messages=SUM, temperature=0, user="me", store=False, service_tier="auto",
        metadata={"a": "b"}, safety_identifier="me", prompt_cache_key="key", prompt_cache_retention="24h",
        verbosity="low",
    )  # fmt: skip
    assert reply.choices[0].message.content == SUM_ANSWER


@scenario
def fields_of_other_engines_are_reported(server: Server) -> None:
    raw = connect(server).chat.completions.with_raw_response.create(
        model=server.model, messages=SUM, temperature=0, extra_body={"num_ctx": 2048, "repeat_penalty": 1.0}
    )
    assert raw.parse().choices[0].message.content == SUM_ANSWER
    assert raw.headers["x-ignored-fields"] == "num_ctx"


@scenario
def a_cancelled_stream_frees_its_request(server: Server) -> None:
    before = server.aborted()
    stream = connect(server).chat.completions.create(
        model=server.model, messages=SUM, stream=True, max_tokens=1900, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    wait_until(lambda: server.aborted() == before + 1)


@scenario
async def many_at_once(server: Server) -> None:
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        replies = await asyncio.gather(
            *(client.chat.completions.create(model=server.model, messages=SUM, temperature=0) for _ in range(8))
        )
    assert {reply.choices[0].message.content for reply in replies} == {SUM_ANSWER}


@scenario
def errors_are_the_packages_own(server: Server) -> None:
    create = connect(server).chat.completions.create
    assert refused(openai.NotFoundError, create, model="absent", messages=SUM).param == "model"
    assert refused(openai.BadRequestError, create, model=server.model, messages=[]).param == "messages"
    assert refused(openai.BadRequestError, create, model=server.model, messages=SUM, temperature=-1).param == (
        "temperature"
    )


@scenario
def forced_calls(server: Server) -> None:
    """Of a question for which the model would call nothing. A named function ends with `stop`, as OpenAI's does."""
    named = {"type": "function", "function": {"name": "get_weather"}}
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    for choice, reason in (("required", "tool_calls"), (named, "stop")):
        told = connect(server).chat.completions.parse(
            model=server.model, messages=SUM, tools=[tool], tool_choice=choice, temperature=0,
            parallel_tool_calls=False,
        ).choices[0]  # fmt: skip
        assert told.finish_reason == reason
        (call,) = told.message.tool_calls
        assert isinstance(call.function.parsed_arguments, GetWeather)


if __name__ == "__main__":
    main()
