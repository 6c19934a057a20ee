"""ChatAnswer: one answer of a chat, taken apart into texts, thoughts and calls as it comes."""

import uuid

from jaxinfer.server.reply_schema import FunctionCall, ToolCallReply
from jaxinfer.serving.bodies.chat_schema import ChatBody
from jaxinfer.serving.context import Context
from jaxinfer.text import ChoiceDelta
from jaxinfer.text.answer.parser import AnswerFormat
from jaxinfer.text.answer.parts import AnswerPart


class ChatAnswer:
    """One choice. prompt: its text, if it was rendered. form: of the answer. reasoning: counts its tokens, None if they
    cannot be told apart."""

    def __init__(self, context: Context, body: ChatBody, prompt: str | None, form: AnswerFormat):
        thinking = form.thinks(prompt or "", continued=bool(body.continue_final_message))
        self._parser = form.parser(thinking=thinking)
        self._one_call = body.parallel_tool_calls is False
        self._named = isinstance(body.tool_choice, dict) and body.tool_choice.get("type") == "function"
        self._shows_reasoning = body.include_reasoning is not False
        self._calls = 0
        self._shows_call = False
        self.reasoning = context.reasoning_tokens(form, thinking=thinking)

    def push(self, delta: ChoiceDelta) -> list[AnswerPart | ToolCallReply]:
        """Return the parts that a delta adds and that can be shown; calls get their ids."""
        parts = self._parser.push(delta.text)
        if self.reasoning is not None:
            self.reasoning.push(delta.token_ids)
        if delta.finish_reason is not None:
            parts += self._parser.flush()
        shown = [part for part in parts if self._shows_reasoning or not part.reasoning]
        return [numbered for part in shown if (numbered := self._numbered(part)) is not None]

    def finish_reason(self, delta: ChoiceDelta) -> str | None:
        """`tool_calls` where the model chose to call and stopped; as OpenAI says, not where the request names the
        function."""
        chose = self._calls and not self._named
        return "tool_calls" if delta.finish_reason == "stop" and chose else delta.finish_reason

    def _numbered(self, part: AnswerPart) -> AnswerPart | ToolCallReply | None:
        if part.arguments:
            more = ToolCallReply(function=FunctionCall(arguments=part.arguments), index=self._calls - 1)
            return more if self._shows_call else None
        if part.tool_call is None:
            return part
        self._shows_call = not (self._one_call and self._calls)
        if not self._shows_call:
            return None
        self._calls += 1
        name, arguments = part.tool_call
        function = FunctionCall(name=name, arguments=arguments)
        call_id = f"call_{uuid.uuid4().hex[:24]}"
        return ToolCallReply(id=call_id, function=function, type="function", index=self._calls - 1)
