"""The anthropic package for Python: its plain calls and its helpers, and its own models of all that comes back."""
# pyright: reportMissingImports=false

import asyncio
import json

import anthropic
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from pydantic import BaseModel, ConfigDict, TypeAdapter
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
TOOL = {
    "name": "get_weather",
    "description": "Get the weather",
    "input_schema": WEATHER_TOOL["function"]["parameters"],
    "cache_control": {"type": "ephemeral"},
}
GREEDY = {"extra_body": {"temperature": 0}}  # a parameter that the package no longer has
PLAIN = {**GREEDY, "thinking": {"type": "disabled"}, "max_tokens": 400}
EVENTS: TypeAdapter = TypeAdapter(RawMessageStreamEvent)


class City(BaseModel):
    """A city."""

    model_config = ConfigDict(extra="forbid")
    city: str


def connect(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60)


def create(server: Server, **body: object) -> Message:
    """A whole reply, which is valid for the package's model; the package itself does not validate."""
    raw = connect(server).messages.with_raw_response.create(**{"model": server.model, **PLAIN, **body})
    Message.model_validate_json(raw.http_response.content, strict=True)
    message = raw.parse()
    assert message._request_id == raw.headers["request-id"]
    return message


@scenario
def a_message(server: Server) -> None:
    reply = create(server, messages=SUM, system=[{"type": "text", "text": "You add."}])
    (block,) = reply.content
    assert "42" in block.text
    reply = create(server, messages=SUM)
    assert [block.text for block in reply.content] == [SUM_ANSWER]
    assert (reply.stop_reason, reply.stop_sequence, reply.model) == ("end_turn", None, server.model)
    again = create(server, messages=SUM)
    first, second = reply.usage, again.usage
    assert second.cache_read_input_tokens > 0, "the same prompt is cached"
    totals = [usage.input_tokens + usage.cache_read_input_tokens for usage in (first, second)]
    assert totals[0] == totals[1]
    assert first.output_tokens > 0


@scenario
def events_of_a_stream(server: Server) -> None:
    stream = connect(server).messages.create(model=server.model, messages=SUM, stream=True, **PLAIN)
    events = [EVENTS.validate_python(event.model_dump(), strict=True) for event in stream]
    assert [event.type for event in events[:2]] == ["message_start", "content_block_start"]
    assert [event.type for event in events[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(event.delta.text for event in events if event.type == "content_block_delta") == SUM_ANSWER
    assert events[-2].usage.output_tokens > 0


@scenario
def the_stream_helper_joins_a_message(server: Server) -> None:
    with connect(server).messages.stream(model=server.model, messages=SUM, **PLAIN) as stream:
        assert "".join(stream.text_stream) == SUM_ANSWER
        message = stream.get_final_message()
    whole = create(server, messages=SUM)
    assert [block.text for block in message.content] == [block.text for block in whole.content]
    assert message.stop_reason == whole.stop_reason


@scenario
def tool_loop(server: Server) -> None:
    called = create(server, messages=WEATHER, tools=[TOOL])
    assert called.stop_reason == "tool_use"
    call = called.content[-1]
    assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": WEATHER_RESULT}]}
    messages = [*WEATHER, called.to_param(), {"role": "user", "content": [result]}]
    answer = create(server, messages=messages, tools=[TOOL])
    assert answer.stop_reason == "end_turn"
    assert "21" in answer.content[-1].text


@scenario
def tool_loop_of_a_stream(server: Server) -> None:
    options = {"model": server.model, "tools": [TOOL], **PLAIN}
    with connect(server).messages.stream(messages=WEATHER, **options) as stream:
        written = "".join(event.partial_json for event in stream if event.type == "input_json")
        called = stream.get_final_message()
    call = called.content[-1]
    assert call.input == json.loads(written) == {"city": "Paris"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": WEATHER_RESULT}
    messages = [*WEATHER, called.to_param(), {"role": "user", "content": [result]}]
    with connect(server).messages.stream(messages=messages, **options) as stream:
        assert "21" in stream.get_final_text()


@scenario
def the_tool_runner_calls_functions(server: Server) -> None:
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Get the weather"""
        asked.append(city)
        return WEATHER_RESULT

    runner = connect(server).beta.messages.tool_runner(
        model=server.model, messages=WEATHER, tools=[get_weather], **PLAIN
    )
    assert "21" in runner.until_done().content[-1].text
    assert asked == ["Paris"]


@scenario
def forced_calls(server: Server) -> None:
    closed = {**TOOL, "input_schema": {**TOOL["input_schema"], "additionalProperties": False}}
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}):
        reply = create(server, messages=SUM, tools=[closed], tool_choice=choice)
        assert reply.stop_reason == "tool_use"
        City.model_validate(reply.content[-1].input)


@scenario
def thinking(server: Server) -> None:
    options = {**GREEDY, "thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1500}
    reply = create(server, messages=SUM, **options)
    thought, said = reply.content
    assert (thought.type, said.type) == ("thinking", "text")
    assert thought.thinking
    assert "42" in said.text
    with connect(server).messages.stream(model=server.model, messages=SUM, **options) as stream:
        told = "".join(event.thinking for event in stream if event.type == "thinking")
        assert told == stream.get_final_message().content[0].thinking == thought.thinking
    messages = [*SUM, reply.to_param(), *SUM]
    assert create(server, messages=messages).content


@scenario
def parsed_output(server: Server) -> None:
    options = {"model": server.model, "messages": WEATHER, "output_format": City, **PLAIN}
    parsed = connect(server).messages.parse(**options)
    assert isinstance(parsed.parsed_output, City)


@scenario
def why_an_answer_ends(server: Server) -> None:
    assert create(server, messages=SUM, max_tokens=1).stop_reason == "max_tokens"
    stopped = create(server, messages=SUM, stop_sequences=["="])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "=")
    assert stopped.content[0].text == SUM_ANSWER.partition("=")[0]


@scenario
def more_tokens_than_the_context_has(server: Server) -> None:
    """Ask for tokens as Claude Code does."""
    with connect(server).messages.with_streaming_response.create(
        model=server.model, messages=SUM, stream=True, **{**PLAIN, "max_tokens": 32_000}
    ) as response:
        assert 0 < int(response.headers["x-max-tokens"]) < 32_000
        assert b"message_stop" in response.read()


@scenario
def tokens_are_counted(server: Server) -> None:
    body = {"model": server.model, "messages": WEATHER, "tools": [TOOL], "thinking": PLAIN["thinking"]}
    raw = connect(server).messages.with_raw_response.count_tokens(**body)
    MessageTokensCount.model_validate_json(raw.http_response.content, strict=True)
    usage = create(server, messages=WEATHER, tools=[TOOL]).usage
    assert raw.parse().input_tokens == usage.input_tokens + usage.cache_read_input_tokens


@scenario
def the_body_of_a_coding_agent(server: Server) -> None:
    """Fields that Claude Code sends with each request."""
    client = anthropic.Anthropic(base_url=server.url, auth_token="none", max_retries=0, timeout=60)
    stream = client.beta.messages.create(
        model=server.model, max_tokens=400, stream=True, extra_body={"temperature": 1}, metadata={"user_id": "user_1"},
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1a2b3;"},
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        ],
        messages=[
            {"role": "user", "content": [
                {"type": "text", "text": "<system-reminder>Be short.</system-reminder>"},
                {"type": "text", "text": SUM_QUESTION, "cache_control": {"type": "ephemeral"}},
            ]},
        ],
        tools=[TOOL], thinking={"type": "adaptive"}, output_config={"effort": "low"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        betas=["claude-code-20250219", "interleaved-thinking-2025-05-14"],
    )  # fmt: skip
    assert [event.type for event in stream][-1] == "message_stop"


@scenario
def a_cancelled_stream_frees_its_request(server: Server) -> None:
    before = server.aborted()
    long = {"model": server.model, "max_tokens": 1500, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    with connect(server).messages.stream(messages=SUM, **long) as stream:
        next(iter(stream))
    wait_until(lambda: server.aborted() == before + 1)


@scenario
async def many_at_once(server: Server) -> None:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        replies = await asyncio.gather(
            *(client.messages.create(model=server.model, messages=SUM, **PLAIN) for _ in range(8))
        )
    assert {reply.content[0].text for reply in replies} == {SUM_ANSWER}


@scenario
def errors_are_the_packages_own(server: Server) -> None:
    ask = connect(server).messages.create
    absent = refused(anthropic.NotFoundError, ask, model="absent", messages=SUM, **PLAIN)
    assert absent.body["error"]["type"] == "not_found_error"
    assert absent.request_id == absent.body["request_id"]
    wrong = refused(anthropic.BadRequestError, ask, model=server.model, messages=[], **PLAIN)
    assert wrong.body["error"] == {"type": "invalid_request_error", "message": "messages: is empty"}
    image = [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://a/b.png"}}]}]
    unknown = refused(anthropic.BadRequestError, ask, model=server.model, messages=image, **PLAIN)
    assert "messages[0].content[0].type" in unknown.body["error"]["message"]
    form = {"format": {"type": "json_schema", "schema": {"type": "nothing"}}}
    schema = refused(anthropic.BadRequestError, ask, model=server.model, messages=SUM, output_config=form, **PLAIN)
    assert schema.body["error"]["message"].startswith("output_config.format.schema")


if __name__ == "__main__":
    main()
