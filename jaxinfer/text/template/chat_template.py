"""Chat templates: messages to the text that a model was trained on, rendered in a limited process."""

import asyncio
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from jaxinfer.errors import ParameterError
from jaxinfer.text.answer.forms import UnparsedForm, unparsed_forms
from jaxinfer.text.answer.parser import AnswerFormat
from jaxinfer.text.template.files import load_chat_templates, named_chat_templates
from jaxinfer.text.template.messages import ROLES, with_object_arguments, with_reasoning_names
from jaxinfer.text.template.template_process import TemplateLimits, TemplateProcess
from jaxinfer.text.tokenizer.tokenizer import Tokenizer

_Rendered = Callable[[Sequence[Mapping[str, Any]]], str]

ALWAYS_ALLOWED = frozenset({"enable_thinking", "thinking"})
"""Arguments that may be sent to every template; one that does not read them renders the same."""

_RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "tokenize", "chat_template"}
    | {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}
    | {"strftime_now", "raise_exception", "loop", "self"}
)


class ChatTemplate:
    """A model's chat template.

    Jobs run one after another in a worker process that is replaced when it exceeds its limits.
    Safe to use from several threads. `close` ends the process. source: the default template's text. form: how the
    model writes what it thinks and what it calls, as far as its template shows it. limits: of one rendering. templates:
    their texts by name. default_kwargs: arguments of every rendering that does not give them itself.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str],
        limits: TemplateLimits,
        default_kwargs: Mapping[str, Any] | None = None,
    ):
        self.templates = dict(templates)
        self._processes = {name: TemplateProcess(text, limits) for name, text in templates.items()}
        self.limits = limits
        self.source = templates.get("default")
        self.form = AnswerFormat.of_template(templates.get("tool_use", templates.get("default", "")))
        self._all_text = "".join(templates.values())
        self._special_tokens = dict(special_tokens)
        self.default_kwargs = dict(default_kwargs or {})
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="chat-template")

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: Tokenizer,
        limits: TemplateLimits | None = None,
        *,
        asked: str | None = None,
        default_kwargs: Mapping[str, Any] | None = None,
    ) -> "ChatTemplate":
        """The template of a tokenizer's folder. asked: another one; see `named_chat_templates`.

        Raises ModelError, and ParameterError for what is asked and not there.
        """
        templates = load_chat_templates(tokenizer.folder, tokenizer.config)
        if asked is not None:
            templates = named_chat_templates(asked, templates)
        return cls(templates, tokenizer.special_tokens, limits or TemplateLimits(), default_kwargs)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> str:
        """The prompt's text. Blocks until the worker has answered; see `render_async`.

        messages: of `template_message`; the reasoning of each reaches the template under the names that it reads.
        tools: of OpenAI's form; see `check_tools`. continue_final_message: the text ends with the last message's
        content, open-ended. template_kwargs: further variables, from an allow-list: those that the template reads, and
        `ALWAYS_ALLOWED`. now: what `strftime_now` tells. Raises ParameterError.
        """
        process = self._process(bool(tools))
        if tools and not self.takes_tools:
            raise ParameterError("tools", "are not taken by the model's chat template")
        self._check_kwargs(template_kwargs or {}, process)
        variables = {
            **self._with_defaults(template_kwargs or {}),
            **self._special_tokens,
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        at = now or datetime.now()

        def rendered(said: Sequence[Mapping[str, Any]]) -> str:
            named = [with_reasoning_names(message, process.fields()) for message in said]
            return process.render({**variables, "messages": named}, at)

        def whole(said: Sequence[Mapping[str, Any]]) -> str:
            text = _open_ended(said, rendered) if continue_final_message else rendered(said)
            _check_custom_roles(said, rendered)
            return text

        try:
            return whole(messages)
        except ParameterError:
            # A template may read arguments of calls as objects only.
            plain = [with_object_arguments(message) for message in messages]
            if plain == list(messages):
                raise
            return whole(plain)

    async def render_async(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """`render`, off the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: self.render(messages, **options))

    @property
    def exists(self) -> bool:
        """False where the model has no chat template."""
        return bool(self._processes)

    @property
    def takes_tools(self) -> bool:
        """True where the template reads `tools`. Starts the worker where it does not run."""
        return bool(self._processes) and "tools" in self._process(with_tools=True).names()

    @property
    def takes_thinking(self) -> bool:
        """True where the template reads whether the model shall think. Starts the worker where it does not run."""
        return self._reads("enable_thinking") or self._reads("thinking")

    @property
    def takes_effort(self) -> bool:
        """True where the template reads `reasoning_effort`. Starts the worker where it does not run."""
        return self._reads("reasoning_effort")

    def unparsed_forms(self) -> list[UnparsedForm]:
        """Return the forms in the model's answers that are not parsed. Starts the worker if it does not run."""
        return unparsed_forms(self._all_text, takes_tools=self.takes_tools, knows_calls=self.form.calls is not None)

    def literals(self, *, with_tools: bool) -> frozenset[str]:
        """The strings in the text of the template. Starts the worker where it does not run."""
        return self._process(with_tools).literals()

    def check(self) -> None:
        """Starts the workers. Raises ModelError where a template is not valid, ParameterError for default arguments
        that it does not read."""
        for process in self._processes.values():
            process.names()
        if self.default_kwargs:
            self._check_kwargs(self.default_kwargs, self._process(False), "default_chat_template_kwargs")

    def close(self) -> None:
        """Ends the worker processes."""
        for process in self._processes.values():
            process.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _reads(self, name: str) -> bool:
        return bool(self._processes) and name in self._process(False).names()

    def _process(self, with_tools: bool) -> TemplateProcess:
        if with_tools and "tool_use" in self._processes:
            return self._processes["tool_use"]
        if "default" not in self._processes:
            raise ParameterError("messages", "the model has no chat template; use /v1/completions or `generate`")
        return self._processes["default"]

    def _with_defaults(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of a rendering. Who gives one of the switches of thinking sets both."""
        switched = bool(ALWAYS_ALLOWED & given.keys())
        kept = {name: value for name, value in self.default_kwargs.items() if not (switched and name in ALWAYS_ALLOWED)}
        return {**kept, **given}

    def _check_kwargs(
        self, kwargs: Mapping[str, Any], process: TemplateProcess, param: str = "chat_template_kwargs"
    ) -> None:
        if not kwargs:
            return
        allowed = (process.names() | ALWAYS_ALLOWED) - _RESERVED
        for name in kwargs:
            if name not in allowed:
                listed = ", ".join(sorted(allowed)) or "none"
                raise ParameterError(f"{param}.{name}", f"is not allowed; this model allows: {listed}")
        try:
            json.dumps(kwargs, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ParameterError(param, f"cannot be sent to a template: {error}") from None


def _open_ended(messages: Sequence[Mapping[str, Any]], rendered: _Rendered) -> str:
    """The rendered text up to the end of the last message's content."""
    mark, last = _mark(), len(messages) - 1
    # As in transformers: the space after the mark tells whether the template trims the content.
    text, found, after = rendered(_marked(messages, {last: mark + " "})).rpartition(mark)
    if not found:
        raise ParameterError("continue_final_message", "the model's chat template leaves out the last message")
    return text if after.startswith(" ") else text.rstrip()


def _check_custom_roles(messages: Sequence[Mapping[str, Any]], rendered: _Rendered) -> None:
    """Raises ParameterError for a message whose role is none of ROLES and which the template leaves out."""
    marks = {i: _mark() for i, message in enumerate(messages) if message["role"] not in ROLES}
    if not marks:
        return
    text = rendered(_marked(messages, marks))
    for i, mark in marks.items():
        if mark not in text:
            role = messages[i]["role"]
            message = f"{role!r} is not taken by the model's chat template; others are {', '.join(ROLES)}"
            raise ParameterError(f"messages[{i}].role", message)


def _mark() -> str:
    """A text that no message has."""
    return f"[{uuid.uuid4().hex}]"


def _marked(messages: Sequence[Mapping[str, Any]], marks: Mapping[int, str]) -> list[Mapping[str, Any]]:
    """The messages with marks at the end of their contents, by their index."""
    return [{**message, "content": message["content"] + marks.get(i, "")} for i, message in enumerate(messages)]
