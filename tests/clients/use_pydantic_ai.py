"""pydantic-ai: an agent with a tool, its stream, its history, and an object as its answer."""
# pyright: reportMissingImports=false

import asyncio

from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError, ModelSettings, ToolOutput
from pydantic_ai.messages import ThinkingPart
from pydantic_ai.models.openai import (
    OpenAIChatModel,
    OpenAIChatModelSettings,
    OpenAIResponsesModel,
    OpenAIResponsesModelSettings,
)
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider
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


BOOK = ToolOutput(Reservation, name="book_table", description="Book a table")
RESERVATION = "Book a table with name Anna and seats 4."


def chat_model(server: Server, **profile) -> OpenAIChatModel:
    provider = OpenAIProvider(base_url=server.base_url, api_key="none")
    return OpenAIChatModel(server.model, provider=provider, profile=OpenAIModelProfile(**profile) or None)


def agent(server: Server, **options) -> Agent:
    return Agent(chat_model(server), model_settings=ModelSettings(temperature=0), retries=0, **options)


def weather_agent(server: Server) -> Agent:
    made = agent(server)

    @made.tool_plain
    def get_weather(city: str) -> str:
        """Get the weather"""
        assert city == "Paris"
        return WEATHER_RESULT

    return made


@scenario
def an_answer_with_usage(server: Server) -> None:
    result = agent(server).run_sync(SUM_QUESTION)
    assert result.output == SUM_ANSWER
    usage = result.usage
    assert usage.requests == 1
    assert usage.input_tokens > 0
    assert usage.output_tokens > 0


@scenario
async def stream(server: Server) -> None:
    async with agent(server).run_stream(SUM_QUESTION) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 1
    assert "".join(pieces) == SUM_ANSWER


@scenario
def tool_loop(server: Server) -> None:
    """The tool is strict, and the second turn has what the agent itself put into the message."""
    result = weather_agent(server).run_sync(WEATHER_QUESTION)
    assert "21" in result.output
    assert len(result.all_messages()) == 4


@scenario
async def tool_loop_of_a_stream(server: Server) -> None:
    async with weather_agent(server).run_stream(WEATHER_QUESTION) as result:
        assert "21" in await result.get_output()


@scenario
def history_goes_back(server: Server) -> None:
    made = weather_agent(server)
    first = made.run_sync(WEATHER_QUESTION)
    second = made.run_sync("What is 3 plus 4?", message_history=first.all_messages())
    assert second.output
    assert len(second.all_messages()) >= 6


@scenario
def thinking_goes_back(server: Server) -> None:
    made = Agent(chat_model(server), retries=0)
    settings = OpenAIChatModelSettings(
        temperature=0, extra_body={"chat_template_kwargs": {"enable_thinking": True}}
    )  # fmt: skip
    first = made.run_sync(SUM_QUESTION, model_settings=settings)
    assert "42" in first.output
    assert any(isinstance(part, ThinkingPart) and part.content for part in first.all_messages()[-1].parts)
    second = made.run_sync("What is 3 plus 4?", message_history=first.all_messages(), model_settings=settings)
    assert "7" in second.output


@scenario
def reasoning_effort(server: Server) -> None:
    settings = OpenAIChatModelSettings(extra_body={"top_k": 1}, openai_reasoning_effort="low", openai_user="me")
    result = Agent(chat_model(server, openai_supports_reasoning=True)).run_sync(SUM_QUESTION, model_settings=settings)
    assert "42" in result.output


@scenario
def log_probabilities(server: Server) -> None:
    settings = OpenAIChatModelSettings(temperature=0, openai_logprobs=True, openai_top_logprobs=2)
    result = Agent(chat_model(server)).run_sync(SUM_QUESTION, model_settings=settings)
    tokens = result.all_messages()[-1].provider_details["logprobs"]
    assert "".join(token["token"] for token in tokens).startswith(SUM_ANSWER)


@scenario
def an_object_by_an_unforced_tool(server: Server) -> None:
    """The profile leaves it to the model whether it calls the tool that makes the object."""
    model = chat_model(server, supports_forced_tool_choice=False)
    made = Agent(model, output_type=BOOK, model_settings=ModelSettings(temperature=0), retries=0)
    assert made.run_sync(RESERVATION).output == Reservation(name="Anna", seats=4)


@scenario
async def a_cancelled_stream_frees_its_request(server: Server) -> None:
    before = await asyncio.to_thread(server.aborted)
    settings = OpenAIChatModelSettings(max_tokens=1900, extra_body={"ignore_eos": True})
    async with Agent(chat_model(server)).run_stream(SUM_QUESTION, model_settings=settings) as result:
        async for _ in result.stream_text(delta=True, debounce_by=None):
            break
        await result.cancel()
    await asyncio.to_thread(wait_until, lambda: server.aborted() == before + 1)


@scenario
def errors_are_pydantic_ais_own(server: Server) -> None:
    error = refused(ModelHTTPError, lambda: agent(Server(server.url, "absent")).run_sync("hi"))
    assert (error.status_code, error.body["param"]) == (404, "model")
    hot = ModelSettings(temperature=1000)
    error = refused(ModelHTTPError, lambda: agent(server).run_sync("hi", model_settings=hot))
    assert (error.status_code, error.body["param"]) == (400, "temperature")


@scenario
def an_object_by_a_forced_tool(server: Server) -> None:
    assert isinstance(agent(server, output_type=BOOK).run_sync(RESERVATION).output, Reservation)


def responses_agent(server: Server, **options) -> Agent:
    provider = OpenAIProvider(base_url=server.base_url, api_key="none")
    model = OpenAIResponsesModel(server.model, provider=provider)
    return Agent(model, model_settings=ModelSettings(temperature=0), retries=0, **options)


@scenario
def responses(server: Server) -> None:
    one = responses_agent(server)

    @one.tool_plain
    def get_weather(city: str) -> str:
        """Get the weather"""
        assert city == "Paris"
        return WEATHER_RESULT

    first = one.run_sync(WEATHER_QUESTION)
    assert "21" in first.output
    second = one.run_sync(SUM_QUESTION, message_history=first.all_messages())
    assert second.output
    assert isinstance(responses_agent(server, output_type=BOOK).run_sync(RESERVATION).output, Reservation)


@scenario
def responses_with_thinking_and_a_stored_history(server: Server) -> None:
    settings = OpenAIResponsesModelSettings(temperature=0, openai_reasoning_effort="low")
    first = responses_agent(server).run_sync(SUM_QUESTION, model_settings=settings)
    assert "42" in first.output
    settings = OpenAIResponsesModelSettings(temperature=0, openai_previous_response_id="auto")
    history = first.all_messages()
    assert (
        "7"
        in responses_agent(server)
        .run_sync("What is 3 plus 4?", message_history=history, model_settings=settings)
        .output
    )


@scenario
async def a_stream_of_a_response(server: Server) -> None:
    async with responses_agent(server).run_stream(SUM_QUESTION) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 1
    assert "".join(pieces) == SUM_ANSWER


if __name__ == "__main__":
    main()
