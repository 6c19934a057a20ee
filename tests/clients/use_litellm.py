"""litellm, with its providers for OpenAI's API: `openai/…` and `hosted_vllm/…`."""
# pyright: reportMissingImports=false

import asyncio
import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the web for prices when it is imported

import litellm
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

litellm.suppress_debug_info = True

SUM = [{"role": "user", "content": SUM_QUESTION}]
PROVIDERS = ("openai", "hosted_vllm")


def where(server: Server, provider: str = "openai") -> dict:
    return {
        "model": f"{provider}/{server.model}", "api_base": server.base_url, "api_key": "none", "num_retries": 0,
        "timeout": 60, "temperature": 0,
    }  # fmt: skip


@scenario
def completion(server: Server) -> None:
    for provider in PROVIDERS:
        reply = litellm.completion(messages=SUM, **where(server, provider))
        assert reply.choices[0].message.content == SUM_ANSWER
        assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens > 2


@scenario
def stream_with_usage(server: Server) -> None:
    chunks = list(
        litellm.completion(messages=SUM, stream=True, stream_options={"include_usage": True}, **where(server))
    )
    whole = litellm.stream_chunk_builder(chunks, messages=SUM)
    assert whole.choices[0].message.content == SUM_ANSWER
    counted = litellm.completion(messages=SUM, **where(server)).usage
    assert whole.usage.completion_tokens == counted.completion_tokens
    assert whole.usage.prompt_tokens == counted.prompt_tokens


@scenario
def tool_loop(server: Server) -> None:
    """litellm's message goes back as it is, as agents send it, with `provider_specific_fields` and all."""
    for provider in PROVIDERS:
        messages = [{"role": "user", "content": WEATHER_QUESTION}]
        called = litellm.completion(messages=messages, tools=[WEATHER_TOOL], **where(server, provider)).choices[0]
        assert called.finish_reason == "tool_calls"
        assert "provider_specific_fields" in called.message.model_dump()
        messages += [called.message, result_of(called.message)]
        answer = litellm.completion(messages=messages, tools=[WEATHER_TOOL], **where(server, provider)).choices[0]
        assert "21" in answer.message.content


@scenario
def tool_loop_with_dumped_messages(server: Server) -> None:
    messages = [{"role": "user", "content": WEATHER_QUESTION}]
    called = litellm.completion(messages=messages, tools=[WEATHER_TOOL], **where(server)).choices[0].message
    messages += [called.model_dump(), result_of(called)]
    answer = litellm.completion(messages=messages, tools=[WEATHER_TOOL], **where(server)).choices[0].message
    messages += [answer.model_dump(), {"role": "user", "content": SUM_QUESTION}]
    assert litellm.completion(messages=messages, **where(server)).choices[0].message.content


@scenario
def tool_loop_of_a_stream(server: Server) -> None:
    messages = [{"role": "user", "content": WEATHER_QUESTION}]
    chunks = list(litellm.completion(messages=messages, tools=[WEATHER_TOOL], stream=True, **where(server)))
    called = litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message
    messages += [called, result_of(called)]
    answer = litellm.completion(messages=messages, tools=[WEATHER_TOOL], **where(server)).choices[0]
    assert "21" in answer.message.content


def result_of(message) -> dict:
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    return {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": WEATHER_RESULT}


@scenario
def tool_loop_with_marks_for_caching(server: Server) -> None:
    """Agents leave Anthropic's `cache_control` in parts, tools and messages, whatever the provider."""
    mark = {"cache_control": {"type": "ephemeral"}}
    part = {"type": "text", "text": WEATHER_QUESTION, **mark}
    messages = [{"role": "user", "content": [part]}]
    tools = [{**WEATHER_TOOL, **mark}]
    for provider in PROVIDERS:
        called = litellm.completion(messages=messages, tools=tools, **where(server, provider)).choices[0].message
        history = [*messages, called, {**result_of(called), **mark}]
        answer = litellm.completion(messages=history, tools=tools, **where(server, provider)).choices[0].message
        assert "21" in answer.content


@scenario
def thinking_is_apart_and_goes_back(server: Server) -> None:
    thought = litellm.completion(
        messages=SUM, extra_body={"chat_template_kwargs": {"enable_thinking": True}}, **where(server)
    ).choices[0].message  # fmt: skip
    assert thought.reasoning_content
    assert "42" in thought.content
    messages = [*SUM, thought, {"role": "user", "content": "What is 3 plus 4?"}]
    assert "7" in litellm.completion(messages=messages, **where(server)).choices[0].message.content


@scenario
def reasoning_effort(server: Server) -> None:
    for provider in PROVIDERS:
        options = {"allowed_openai_params": ["reasoning_effort"], **where(server, provider)}
        thought = litellm.completion(messages=SUM, reasoning_effort="low", **options).choices[0].message
        assert thought.reasoning_content
        plain = litellm.completion(messages=SUM, reasoning_effort="none", **options).choices[0].message
        assert plain.content == SUM_ANSWER


@scenario
def log_probabilities(server: Server) -> None:
    choice = litellm.completion(messages=SUM, logprobs=True, top_logprobs=2, **where(server)).choices[0]
    tokens = choice.logprobs.content
    assert "".join(token.token for token in tokens).startswith(SUM_ANSWER)
    assert all(len(token.top_logprobs) == 2 for token in tokens)


@scenario
def text_completion(server: Server) -> None:
    options = where(server) | {"model": f"text-completion-openai/{server.model}"}
    reply = litellm.text_completion(prompt="Hello there", max_tokens=4, **options)
    assert reply.choices[0].text
    assert reply.usage.completion_tokens == 4


@scenario
def models_are_listed(server: Server) -> None:
    listed = litellm.get_valid_models(
        check_provider_endpoint=True, custom_llm_provider="openai", api_key="none", api_base=server.base_url
    )
    assert [name.removeprefix("openai/") for name in listed] == [server.model]


@scenario
async def a_cancelled_stream_frees_its_request(server: Server) -> None:
    before = await asyncio.to_thread(server.aborted)
    stream = await litellm.acompletion(
        messages=SUM, stream=True, max_tokens=1900, extra_body={"ignore_eos": True}, **where(server)
    )
    await anext(aiter(stream))
    await stream.aclose()
    await asyncio.to_thread(wait_until, lambda: server.aborted() == before + 1)


@scenario
def errors_are_litellms_own(server: Server) -> None:
    for provider in PROVIDERS:
        absent = where(server, provider) | {"model": f"{provider}/absent"}
        refused(litellm.NotFoundError, lambda options=absent: litellm.completion(messages=SUM, **options))
        hot = where(server, provider) | {"temperature": 1000}
        error = refused(litellm.BadRequestError, lambda options=hot: litellm.completion(messages=SUM, **options))
        assert "temperature" in str(error)


@scenario
def a_prompt_that_is_too_long(server: Server) -> None:
    """Agents shorten their history on this exception, which litellm tells by the message alone."""
    messages = [{"role": "user", "content": "word " * 4000}]
    refused(litellm.ContextWindowExceededError, lambda: litellm.completion(messages=messages, **where(server)))


@scenario
def forced_calls(server: Server) -> None:
    messages = [{"role": "user", "content": WEATHER_QUESTION}]
    forced = {"tools": [WEATHER_TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    result_of(litellm.completion(messages=messages, **forced, **where(server)).choices[0].message)


if __name__ == "__main__":
    main()
