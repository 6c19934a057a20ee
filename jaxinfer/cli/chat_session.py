"""ChatSession: a conversation in the terminal, and what the model makes of it."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from jaxinfer.cli.sampling import SamplingFlags
from jaxinfer.cli.statistics import GenerationClock
from jaxinfer.errors import JaxinferError, ParameterError
from jaxinfer.llm import LLM
from jaxinfer.sampling import SamplingParams
from jaxinfer.text import ChoiceDelta
from jaxinfer.text.answer.calls.argument_types import schemas_of
from jaxinfer.text.answer.parts import AnswerPart, Parser, ToolCallPart, WholeCalls
from jaxinfer.text.template.messages import template_message
from jaxinfer.text.template.tools import check_tools

Thinking = Literal["auto", "on", "off"]


class ChatSession:
    """Messages so far, and the settings of the next answer.

    messages: of OpenAI's form. sampling: may be changed between answers. thinking: `auto` leaves it to the model's
    template. statistics: what the last answer took.
    """

    def __init__(self, llm: LLM, sampling: SamplingFlags, *, system: str | None = None, thinking: Thinking = "auto"):
        self._llm = llm
        self.sampling = sampling
        self.thinking: Thinking = "auto"
        self.think(thinking)
        self.tools: list[dict[str, Any]] = []
        self.statistics = ""
        self.messages: list[dict[str, Any]] = []
        if system:
            self.messages.append({"role": "system", "content": system})

    @property
    def params(self) -> SamplingParams:
        """Parameters of the next answer: the settings, with the model's own defaults for parameters that are not
        set."""
        return self.sampling.params(self._llm.text.defaults, default_max_tokens=None)

    def say(self, text: str) -> None:
        """Adds what the user says."""
        self.messages.append({"role": "user", "content": text})

    def tool_said(self, text: str) -> None:
        """Adds what a tool answered."""
        self.messages.append({"role": "tool", "content": text})

    def answer(self, stopped: Callable[[], bool]) -> Iterator[AnswerPart]:
        """Yield the model's answer as it comes; it becomes a message when it ends, or when `stopped` returns True.

        Raises ParameterError if the conversation cannot be answered, and leaves it unchanged then.
        """
        text, ids = self._prompt()
        if len(ids) >= self._llm.info.max_model_len:
            message = f"has {len(ids)} tokens, the context {self._llm.info.max_model_len}; /undo or /clear makes room"
            raise ParameterError("messages", message)
        form = self._llm.text.chat_template.form
        form = form.offering(schemas_of(self.tools))
        params = form.params(self.params, self._llm.text.tokenizer)
        parser = WholeCalls(form.parser(thinking=form.thinks(text)))
        parts: list[AnswerPart] = []
        clock = GenerationClock(len(ids), lambda: self._llm.engine.runner.late_programs)
        with contextlib.closing(self._llm.stream({"prompt_token_ids": ids}, params)) as deltas:  # pyright: ignore[reportArgumentType]
            for delta in deltas:
                clock.push(delta)
                for part in _parts(parser, delta):
                    parts.append(part)
                    yield part
                if stopped():
                    break
        self.statistics = clock.line()
        self.messages.append(_message(parts))

    def think(self, thinking: Thinking) -> None:
        """Set whether the model thinks before it answers. Raises ParameterError if its template does not read that."""
        if thinking != "auto" and not self._llm.text.chat_template.takes_thinking:
            raise ParameterError("thinking", "the model's chat template does not read whether it shall think")
        self.thinking = thinking

    def clear(self) -> None:
        """Forgets everything but the system message."""
        self.messages = [message for message in self.messages if message["role"] == "system"]

    def set_system(self, text: str) -> None:
        """Replaces the system message; an empty text removes it."""
        rest = [message for message in self.messages if message["role"] != "system"]
        self.messages = [{"role": "system", "content": text}, *rest] if text else rest

    def undo(self) -> str | None:
        """Takes back what the user said last, and what followed. Returns it; None where there is nothing."""
        for i in range(len(self.messages) - 1, -1, -1):
            if self.messages[i]["role"] == "user":
                said = self.messages[i]["content"]
                del self.messages[i:]
                return said
        return None

    def save(self, file: Path) -> None:
        """Writes the messages as JSON. Raises ParameterError."""
        try:
            file.write_text(json.dumps(self.messages, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise ParameterError("save", f"cannot write {file}: {error.strerror}") from None

    def load(self, file: Path) -> None:
        """Takes messages from a file that `save` wrote, or any list of OpenAI's form. Raises ParameterError."""
        messages = read_json_list(file, "load")
        for i, message in enumerate(messages):
            if not isinstance(message, dict):
                raise ParameterError(f"messages[{i}]", "must be an object with `role` and `content`")
            template_message(message, f"messages[{i}]")
        self.messages = messages

    def use_tools(self, file: Path) -> None:
        """Offers the tools in a JSON file, a list of OpenAI's form. Raises ParameterError."""
        tools = read_tools(file)
        template = self._llm.text.chat_template
        if tools and not template.takes_tools:
            raise ParameterError("tools", "are not taken by the model's chat template")
        if tools and template.form.calls is None:
            raise ParameterError("tools", "the form in which this model calls tools is not known")
        self.tools = tools

    def _prompt(self) -> tuple[str, list[int]]:
        rendered = self._llm.text.conversations.encode(
            [template_message(message, f"messages[{i}]") for i, message in enumerate(self.messages)],
            tools=self.tools or None,
            template_kwargs=None if self.thinking == "auto" else {"enable_thinking": self.thinking == "on"},
        )
        return rendered.text, rendered.token_ids


def read_tools(file: Path) -> list[dict[str, Any]]:
    """The tools in a JSON file, a list of OpenAI's form. Raises ParameterError."""
    tools = read_json_list(file, "tools")
    check_tools(tools)
    return tools


def read_json_list(file: Path, param: str) -> list[Any]:
    """The list in a JSON file. Raises ParameterError."""
    try:
        value = json.loads(file.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise ParameterError(param, f"cannot read {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ParameterError(param, f"{file} is not valid JSON: {error}") from None
    if not isinstance(value, list):
        raise ParameterError(param, f"{file} must hold a list")
    return value


def _parts(parser: Parser, delta: ChoiceDelta) -> list[AnswerPart]:
    if delta.error is not None:
        raise JaxinferError(delta.error)
    parts = parser.push(delta.text)
    return parts if delta.finish_reason is None else parts + parser.flush()


def _message(parts: Sequence[AnswerPart]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "".join(part.content for part in parts)}
    reasoning = "".join(part.reasoning for part in parts)
    calls = [part.tool_call for part in parts if part.tool_call is not None]
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [_call(i, call) for i, call in enumerate(calls)]
    return message


def _call(index: int, call: ToolCallPart) -> dict[str, Any]:
    return {"id": f"call_{index}", "type": "function", "function": call._asdict()}
