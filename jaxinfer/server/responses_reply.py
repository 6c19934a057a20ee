"""ResponsesReply: what /v1/responses makes of a generation."""

import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET

from jaxinfer.sampling import SamplingParams
from jaxinfer.server.chat_answer import ChatAnswer
from jaxinfer.server.logprobs import LogprobForm
from jaxinfer.server.reply import Event, Reply
from jaxinfer.server.reply_schema import ToolCallReply
from jaxinfer.server.response_logprobs import TextLogprobs
from jaxinfer.server.response_output import EventLog, ResponseOutput
from jaxinfer.server.responses_schema import (
    ErrorEvent,
    InputTokensDetails,
    OutputTokensDetails,
    Response,
    ResponseEvent,
    ResponseFailure,
    ResponseUsage,
    Status,
)
from jaxinfer.serving.bodies.responses_schema import ResponsesBody, ResponsesTool
from jaxinfer.serving.context import Context
from jaxinfer.serving.errors import ErrorKind, RequestError
from jaxinfer.serving.generation import Generation, PromptStep
from jaxinfer.serving.requests.conversation import tool_schemas
from jaxinfer.serving.requests.response_tools import is_hosted, offered_tools
from jaxinfer.serving.requests.responses import ResponsesChat
from jaxinfer.text import ChoiceDelta

Keep = Callable[[bytes, list[bytes], list[str]], None]
"""Takes a response that has ended: its JSON, that of the items of its output, and their ids."""

_FAILURES = {ErrorKind.BUSY: "rate_limit_exceeded", ErrorKind.INVALID: "invalid_prompt"}


class ResponsesReply(Reply):
    """A response. name: its id. chat: the one that the body is, perhaps without messages. prompt: its text, if it was
    rendered. keep: is called once the response has ended well."""

    def __init__(
        self,
        name: str,
        context: Context,
        body: ResponsesBody,
        chat: ResponsesChat,
        prompt: str | None,
        generation: Generation,
        keep: Keep,
    ):
        form = context.answer_form.offering(tool_schemas(chat.body))
        self._words = chat.words
        self._answer = ChatAnswer(context, chat.body, prompt, form)
        by_id = body.return_tokens_as_token_ids or context.options.return_tokens_as_token_ids
        self._form = LogprobForm(context.text.tokenizer, by_id=bool(by_id))
        self._logprobs = TextLogprobs()
        self._generation = generation
        self._keep = keep
        self._log = EventLog()
        self._output = ResponseOutput(offered_tools(body.tools), self._log)
        self._response = _begun(name, context.model_name, body, generation.requests[0].sampling)
        self._status: Status = "in_progress"

    def begin(self) -> list[Event]:
        self._log.add(ResponseEvent, "response.created", response=self._response)
        self._log.add(ResponseEvent, "response.in_progress", response=self._response)
        return self._log.take()

    def events(self, step: PromptStep) -> list[Event]:
        for delta in step.deltas:
            self._add(delta)
        return self._log.take()

    def end(self) -> list[Event]:
        self._log.add(ResponseEvent, f"response.{self._status}", response=msgspec.Raw(self.whole()))
        return self._log.take()

    def fail(self, error: RequestError) -> list[Event]:
        told = self._words.translated(error)
        self._log.add(ErrorEvent, "error", code=told.code, message=told.message, param=told.param)
        failure = ResponseFailure(_FAILURES.get(told.kind, "server_error"), told.message)
        self._log.add(ResponseEvent, "response.failed", response=self._ended("failed", error=failure))
        return self._log.take()

    def take(self, step: PromptStep) -> None:
        self.events(step)

    def whole(self) -> bytes:
        whole = msgspec.json.encode(self._ended(self._status, completed_at=int(time.time())))
        items = self._output.items
        self._keep(whole, [msgspec.json.encode(item) for item in items], [item.id for item in items])
        return whole

    def _add(self, delta: ChoiceDelta) -> None:
        if delta.logprobs is not None:
            self._logprobs.push(self._form.chat(delta.logprobs).content)
        for part in self._answer.push(delta):
            if isinstance(part, ToolCallReply):
                self._logprobs.take(part.function.arguments)
                self._output.call(part)
            elif part.reasoning:
                self._logprobs.take(part.reasoning)
                self._output.think(part.reasoning)
            elif part.content:
                self._output.say(part.content, self._logprobs.take(part.content))
        if delta.finish_reason is not None:
            self._status = "incomplete" if delta.finish_reason == "length" else "completed"
            self._output.end(self._status)

    def _ended(self, status: Status, **fields: Any) -> Response:
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return msgspec.structs.replace(
            self._response,
            status=status,
            output=list(self._output.items),
            usage=self._usage(),
            incomplete_details=reason,
            **fields,
        )

    def _usage(self) -> ResponseUsage:
        usage = self._generation.usage()
        reasoning = 0 if self._answer.reasoning is None else self._answer.reasoning.count
        return ResponseUsage(
            usage.prompt_tokens,
            InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
            usage.completion_tokens,
            OutputTokensDetails(reasoning),
            usage.total_tokens,
            usage.timings,
        )


def _begun(name: str, model: str, body: ResponsesBody, sampling: SamplingParams) -> Response:
    """A response without output, with what was asked for and with the values that count where nothing was."""
    return Response(
        id=name,
        created_at=int(time.time()),
        model=model,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        prompt_cache_retention=body.prompt_cache_retention,
        reasoning=_reasoning(body),
        safety_identifier=body.safety_identifier,
        store=body.store is not False,
        temperature=sampling.temperature,
        text=_text(body),
        tool_choice="auto" if body.tool_choice is None else body.tool_choice,
        tools=[_tool(tool) for tool in body.tools or () if not is_hosted(tool)],
        top_logprobs=body.top_logprobs or 0,
        top_p=sampling.top_p,
        truncation=body.truncation or "disabled",
        user=body.user if isinstance(body.user, str) else UNSET,
    )


def _reasoning(body: ResponsesBody) -> dict[str, str | None]:
    asked = body.reasoning
    return {"effort": asked and asked.effort, "summary": asked and asked.summary}


def _text(body: ResponsesBody) -> dict[str, Any]:
    asked = body.text
    text: dict[str, Any] = {"format": (asked and asked.format) or {"type": "text"}}
    return text if asked is None or asked.verbosity is None else {**text, "verbosity": asked.verbosity}


def _tool(tool: ResponsesTool) -> dict[str, Any]:
    """A tool as it was given, with the fields that a function always has in a response."""
    told = msgspec.to_builtins(tool)
    if tool.type == "namespace":
        told["tools"] = [_tool(each) for each in tool.tools or ()]
    always = {"parameters": None, "strict": None} if tool.type == "function" else {}
    return {**always, **told}
