"""openai-agents: an agent with a tool, a hand-off, a session; by its default, responses, and by chat completions."""
# pyright: reportMissingImports=false

import asyncio
from typing import Any

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    handoff,
    set_tracing_disabled,
)
from openai.types.responses import ResponseTextDeltaEvent
from openai.types.shared import Reasoning
from scenarios import (
    SUM_ANSWER,
    SUM_QUESTION,
    WEATHER_QUESTION,
    WEATHER_RESULT,
    Server,
    main,
    scenario,
    wait_until,
)

set_tracing_disabled(True)


@function_tool
def get_weather(city: str) -> str:
    """Get the weather"""
    assert city == "Paris"
    return WEATHER_RESULT


def agent(server: Server, settings: ModelSettings | None = None, kind=OpenAIResponsesModel, **options) -> Agent:
    client = openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0, timeout=60)
    settings = ModelSettings(temperature=0).resolve(settings)
    model = kind(model=server.model, openai_client=client)
    return Agent(name="Assistant", model=model, model_settings=settings, **options)


@scenario
async def an_answer_with_usage(server: Server) -> None:
    result = await Runner.run(agent(server), SUM_QUESTION)
    assert result.final_output == SUM_ANSWER
    usage = result.context_wrapper.usage
    assert usage.requests == 1
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens > 2


@scenario
async def chat_completions(server: Server) -> None:
    settings = ModelSettings(include_usage=True)
    options = {"kind": OpenAIChatCompletionsModel, "tools": [get_weather]}
    result = await Runner.run(agent(server, settings, **options), WEATHER_QUESTION)
    assert "21" in result.final_output
    streamed = Runner.run_streamed(agent(server, settings, **options), WEATHER_QUESTION)
    names = [event.name async for event in streamed.stream_events() if event.type == "run_item_stream_event"]
    assert names == ["tool_called", "tool_output", "message_output_created"]
    assert streamed.final_output == result.final_output


@scenario
async def the_server_keeps_the_history(server: Server) -> None:
    one = agent(server, tools=[get_weather])
    first = await Runner.run(one, WEATHER_QUESTION, auto_previous_response_id=True)
    second = await Runner.run(one, "What is 3 plus 4?", previous_response_id=first.last_response_id)
    assert "7" in second.final_output


@scenario
async def stream_with_usage(server: Server) -> None:
    result = Runner.run_streamed(agent(server, ModelSettings(include_usage=True)), SUM_QUESTION)
    pieces = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)
    ]
    assert len(pieces) > 1
    assert "".join(pieces) == SUM_ANSWER
    assert result.context_wrapper.usage.output_tokens > 0


@scenario
async def tool_loop(server: Server) -> None:
    """The tool is strict, as function tools are by default here."""
    assert get_weather.strict_json_schema
    result = await Runner.run(agent(server, tools=[get_weather]), WEATHER_QUESTION)
    assert "21" in result.final_output
    assert result.context_wrapper.usage.requests == 2


@scenario
async def tool_loop_of_a_stream(server: Server) -> None:
    result = Runner.run_streamed(agent(server, tools=[get_weather]), WEATHER_QUESTION)
    names = [event.name async for event in result.stream_events() if event.type == "run_item_stream_event"]
    assert names == ["tool_called", "tool_output", "message_output_created"]
    assert "21" in result.final_output


@scenario
async def tool_loop_with_settings(server: Server) -> None:
    settings = ModelSettings(
        parallel_tool_calls=False, tool_choice="auto", store=False, verbosity="low", metadata={"a": "b"},
        reasoning=Reasoning(effort="none"), prompt_cache_retention="24h", top_logprobs=2,
    )  # fmt: skip
    result = await Runner.run(agent(server, settings, tools=[get_weather]), WEATHER_QUESTION)
    assert "21" in result.final_output


@scenario
async def a_session_keeps_the_history(server: Server) -> None:
    session = SQLiteSession("one")
    one = agent(server, tools=[get_weather])
    await Runner.run(one, WEATHER_QUESTION, session=session)
    second = await Runner.run(one, "What is 3 plus 4?", session=session)
    assert second.final_output
    assert len(await session.get_items()) >= 6


@scenario
async def a_hand_off(server: Server) -> None:
    """A hand-off is a tool without arguments."""
    second = agent(server)
    second.name = "Weather"
    tool = handoff(second, tool_name_override="close_account", tool_description_override="Close an account")
    result = await Runner.run(agent(server, handoffs=[tool]), "Please close the account.")
    assert result.last_agent is second


@scenario
async def thinking_goes_back(server: Server) -> None:
    settings = ModelSettings(extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    one = agent(server, settings)
    first = await Runner.run(one, SUM_QUESTION)
    assert "42" in first.final_output
    assert [item.type for item in first.new_items] == ["reasoning_item", "message_output_item"]
    again = [*first.to_input_list(), {"role": "user", "content": "What is 3 plus 4?"}]
    assert "7" in (await Runner.run(one, again)).final_output


@scenario
async def a_cancelled_stream_frees_its_request(server: Server) -> None:
    before = await asyncio.to_thread(server.aborted)
    settings = ModelSettings(max_tokens=1900, extra_body={"ignore_eos": True})
    result = Runner.run_streamed(agent(server, settings), SUM_QUESTION)
    async for event in result.stream_events():
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
            result.cancel()
    await asyncio.to_thread(wait_until, lambda: server.aborted() == before + 1)


@scenario
async def errors_are_those_of_openai(server: Server) -> None:
    error = await refused(openai.NotFoundError, agent(Server(server.url, "absent")))
    assert error.param == "model"
    error = await refused(openai.BadRequestError, agent(server, ModelSettings(top_p=7)))
    assert error.param == "top_p"


@scenario
async def a_forced_call(server: Server) -> None:
    """The agent calls once, and then may answer: it takes the choice back itself."""
    for choice in ("required", "get_weather"):
        settings = ModelSettings(tool_choice=choice, parallel_tool_calls=False)
        result = await Runner.run(agent(server, settings, tools=[get_weather]), WEATHER_QUESTION)
        assert "21" in result.final_output


async def refused(kind: type[Exception], one: Agent) -> Any:
    try:
        await Runner.run(one, SUM_QUESTION)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


if __name__ == "__main__":
    main()
