"""The openai package for Python on /v1/responses: its models of events and items, its helpers, stored responses."""
# pyright: reportMissingImports=false

import json

import openai
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseReasoningItem,
)
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

TOOL = {"type": "function", **WEATHER_TOOL["function"]}


class GetWeather(BaseModel):
    """Get the weather"""

    city: str


class Reservation(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    seats: int


def connect(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0, timeout=60)


def create(server: Server, **options):
    return connect(server).responses.create(**{"model": server.model, "temperature": 0, **options})


def strictly(kind, value) -> None:
    """The package builds models without validation; this validates what they have."""
    TypeAdapter(kind).validate_python(value.model_dump(exclude_unset=True))


@scenario
def a_response(server: Server) -> None:
    response = create(server, input=SUM_QUESTION)
    assert (response.output_text, response.status, response.error) == (SUM_ANSWER, "completed", None)
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens > 2
    strictly(Response, response)
    (message,) = response.output
    assert isinstance(message, ResponseOutputMessage)


@scenario
def a_stream(server: Server) -> None:
    events = list(create(server, input=[{"role": "user", "content": SUM_QUESTION}], stream=True))
    for event in events:
        strictly(type(event), event)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(pieces) > 1
    assert "".join(pieces) == SUM_ANSWER
    last = events[-1]
    assert isinstance(last, ResponseCompletedEvent)
    assert last.response.output_text == SUM_ANSWER
    assert {event.item_id for event in events if hasattr(event, "item_id")} == {last.response.output[0].id}


@scenario
def tool_loop(server: Server) -> None:
    options = {"tools": [TOOL], "input": [{"role": "user", "content": WEATHER_QUESTION}]}
    called = create(server, **options)
    (call,) = called.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    result = {"type": "function_call_output", "call_id": call.call_id, "output": WEATHER_RESULT}
    by_items = create(server, tools=[TOOL], input=[*options["input"], *called.output, result])
    by_reference = create(server, tools=[TOOL], input=[result], previous_response_id=called.id)
    assert "21" in by_items.output_text
    assert by_reference.output_text == by_items.output_text
    assert by_reference.usage.input_tokens == by_items.usage.input_tokens


@scenario
def tool_loop_of_the_stream_helper(server: Server) -> None:
    """The helper makes the tool strict, and adds `parsed_arguments` to the call that goes back."""
    client = connect(server)
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    tool = {"type": "function", **tool["function"]}
    said = [{"role": "user", "content": WEATHER_QUESTION}]
    with client.responses.stream(model=server.model, input=said, tools=[tool], temperature=0) as stream:
        response = stream.get_final_response()
    (call,) = response.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": WEATHER_RESULT}
    said = [*said, *response.output, result]
    with client.responses.stream(model=server.model, input=said, tools=[tool], temperature=0) as stream:
        assert "21" in stream.get_final_response().output_text


@scenario
def an_object_by_the_parse_helper(server: Server) -> None:
    response = connect(server).responses.parse(
        model=server.model, input="Book a table with name Anna and seats 4.", text_format=Reservation, temperature=0
    )
    assert isinstance(response.output_parsed, Reservation)


@scenario
def a_forced_call(server: Server) -> None:
    for choice in ("required", {"type": "function", "name": "get_weather"}):
        (call,) = create(server, input=SUM_QUESTION, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False).output
        assert call.name == "get_weather"


@scenario
def a_custom_tool(server: Server) -> None:
    tool = {"type": "custom", "name": "run", "description": "Run a command"}
    options = {"tools": [tool], "tool_choice": {"type": "custom", "name": "run"}, "max_output_tokens": 60}
    response = create(server, input="Run ls.", **options)
    (call,) = response.output
    assert (call.type, call.name) == ("custom_tool_call", "run")
    streamed = list(create(server, input="Run ls.", stream=True, **options))
    pieces = [event.delta for event in streamed if event.type == "response.custom_tool_call_input.delta"]
    assert "".join(pieces) == call.input
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "README.md"}
    assert create(server, input=[result], tools=[tool], previous_response_id=response.id).output


@scenario
def thinking_by_effort(server: Server) -> None:
    said = [{"role": "user", "content": SUM_QUESTION}]
    response = create(server, input=said, reasoning={"effort": "low", "summary": "auto"})
    thought, message = response.output
    assert isinstance(thought, ResponseReasoningItem)
    assert thought.content[0].text
    assert "42" in message.content[0].text
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens
    again = [*said, *response.output, {"role": "user", "content": "What is 3 plus 4?"}]
    assert "7" in create(server, input=again, reasoning={"effort": "low"}).output_text
    assert create(server, input=SUM_QUESTION, reasoning={"effort": "none"}).output_text == SUM_ANSWER


@scenario
def log_probabilities(server: Server) -> None:
    response = create(server, input=SUM_QUESTION, include=["message.output_text.logprobs"], top_logprobs=3)
    tokens = response.output[0].content[0].logprobs
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == SUM_ANSWER
    assert all(token.top_logprobs[0].token == token.token for token in tokens)
    assert all(len(token.top_logprobs) == 3 for token in tokens)


@scenario
def stored_responses(server: Server) -> None:
    responses = connect(server).responses
    first = create(server, input=SUM_QUESTION, instructions="Be short.")
    second = create(server, input="What is 3 plus 4?", previous_response_id=first.id)
    assert "7" in second.output_text
    assert responses.retrieve(second.id).model_dump() == second.model_dump()
    items = list(responses.input_items.list(second.id, order="asc", limit=1))
    assert [item.role for item in items] == ["user", "assistant", "user"]
    assert items[1].id == first.output[0].id
    responses.delete(first.id)
    assert refused(openai.NotFoundError, responses.retrieve, first.id).code == "response_not_found"
    assert create(server, input="What is 3 plus 4?", previous_response_id=second.id).output_text
    refused(openai.BadRequestError, responses.cancel, second.id)
    gone = create(server, input=SUM_QUESTION, store=False)
    refused(openai.NotFoundError, responses.retrieve, gone.id)


@scenario
def an_answer_that_is_cut(server: Server) -> None:
    response = create(server, input=SUM_QUESTION, max_output_tokens=2)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert create(server, input=SUM_QUESTION, max_output_tokens=10**6).output_text == SUM_ANSWER


@scenario
def fields_of_the_schema_without_effect(server: Server) -> None:
    response = create(
        server, input=SUM_QUESTION, safety_identifier="me", prompt_cache_key="key", service_tier="auto",
        truncation="auto", metadata={"a": "b"}, text={"verbosity": "low"}, include=["reasoning.encrypted_content"],
        background=False, prompt_cache_retention="24h",
    )  # fmt: skip
    assert response.output_text == SUM_ANSWER
    assert response.metadata == {"a": "b"}


@scenario
def a_cancelled_stream_frees_its_request(server: Server) -> None:
    before = server.aborted()
    stream = create(server, input=SUM_QUESTION, stream=True, max_output_tokens=1900, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    wait_until(lambda: server.aborted() == before + 1)


@scenario
def errors_are_the_packages_own(server: Server) -> None:
    assert refused(openai.NotFoundError, create, server, model="absent", input="hi").param == "model"
    assert refused(openai.BadRequestError, create, server, input=[]).param == "input"
    assert refused(openai.BadRequestError, create, server, input="hi", temperature=-1).param == "temperature"
    missing = refused(openai.BadRequestError, create, server, input="hi", previous_response_id="resp_absent")
    assert missing.code == "previous_response_not_found"
    assert refused(openai.BadRequestError, create, server, input="hi", background=True).param == "background"
    form = {"type": "json_schema", "name": "a", "schema": {"contains": {}}}
    wrong = refused(openai.BadRequestError, create, server, input="hi", text={"format": form})
    assert wrong.param.startswith("text.format.schema")
    tool = {"type": "function", "name": "f", "parameters": {"properties": {"a": {"contains": {}}}}}
    tools = {"tools": [{"type": "web_search"}, tool], "tool_choice": "required"}
    assert refused(openai.BadRequestError, create, server, input="hi", **tools).param.startswith("tools[1].parameters")
    too_long = refused(openai.BadRequestError, create, server, input="word " * 4000)
    assert too_long.code == "context_length_exceeded"


if __name__ == "__main__":
    main()
