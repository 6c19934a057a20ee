"""Chat templates: messages to the text that a model was trained on, rendered in a limited process."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

from jaxinfer.errors import ModelError, ParameterError
from jaxinfer.text.answer import AnswerFormat
from jaxinfer.text.messages import with_reasoning_names
from jaxinfer.text.template_process import TemplateLimits, TemplateProcess
from jaxinfer.text.tokenizer import Tokenizer

ALWAYS_ALLOWED = frozenset({"enable_thinking", "thinking"})
"""Arguments that may be sent to every template; one that does not read them renders the same."""

_RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "tokenize", "chat_template"}
    | {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}
    | {"strftime_now", "raise_exception", "loop", "self"}
)


def load_chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The templates of a model folder by name, `default` and perhaps `tool_use`; empty where it has none.

    chat_template.jinja comes before `chat_template` of tokenizer_config.json, which is a string or a
    list of `{"name", "template"}`. Raises ModelError.
    """
    file = folder / "chat_template.jinja"
    if file.is_file():
        return {"default": file.read_text(encoding="utf-8")}
    declared = config.get("chat_template")
    if declared is None:
        return {}
    if isinstance(declared, str):
        return {"default": declared}
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in declared}
    except (TypeError, KeyError):
        raise ModelError(
            f"{folder / 'tokenizer_config.json'}: chat_template must be a string or a list of name and template"
        ) from None


class ChatTemplate:
    """A model's chat template.

    Jobs run one after another in a worker process that is replaced when it exceeds its limits.
    Safe to use from several threads. `close` ends the process. form: how the model writes what it thinks
    and what it calls, as far as its template shows it.
    """

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str], limits: TemplateLimits):
        self._processes = {name: TemplateProcess(text, limits) for name, text in templates.items()}
        self.form = AnswerFormat.of_template(templates.get("tool_use", templates.get("default", "")))
        self._special_tokens = dict(special_tokens)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="chat-template")

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, limits: TemplateLimits | None = None) -> "ChatTemplate":
        """The template of a tokenizer's folder. Raises ModelError."""
        templates = load_chat_templates(tokenizer.folder, tokenizer.config)
        return cls(templates, tokenizer.special_tokens, limits or TemplateLimits())

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> str:
        """The prompt's text. Blocks until the worker has answered; see `render_async`.

        messages: of `template_message`; the reasoning of each reaches the template under the names that it reads.
        tools: of OpenAI's form; see `check_tools`. template_kwargs: further variables, from an allow-list: those
        that the template reads, and `ALWAYS_ALLOWED`. now: what `strftime_now` tells. Raises ParameterError.
        """
        process = self._process(bool(tools))
        if tools and not self.takes_tools:
            raise ParameterError("tools", "are not taken by the model's chat template")
        self._check_kwargs(template_kwargs or {}, process)
        variables = {
            **(template_kwargs or {}),
            **self._special_tokens,
            "messages": [with_reasoning_names(message, process.fields()) for message in messages],
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return process.render(variables, now or datetime.now())

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
        return bool(self._processes) and bool({"enable_thinking", "thinking"} & self._process(False).names())

    def check(self) -> None:
        """Starts the workers. Raises ModelError where a template is not valid."""
        for process in self._processes.values():
            process.names()

    def close(self) -> None:
        """Ends the worker processes."""
        for process in self._processes.values():
            process.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _process(self, with_tools: bool) -> TemplateProcess:
        if with_tools and "tool_use" in self._processes:
            return self._processes["tool_use"]
        if "default" not in self._processes:
            raise ParameterError("messages", "the model has no chat template; use /v1/completions or `generate`")
        return self._processes["default"]

    def _check_kwargs(self, kwargs: Mapping[str, Any], process: TemplateProcess) -> None:
        if not kwargs:
            return
        allowed = (process.names() | ALWAYS_ALLOWED) - _RESERVED
        for name in kwargs:
            if name not in allowed:
                listed = ", ".join(sorted(allowed)) or "none"
                raise ParameterError(f"chat_template_kwargs.{name}", f"is not allowed; this model allows: {listed}")
        try:
            json.dumps(kwargs, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ParameterError("chat_template_kwargs", f"cannot be sent to a template: {error}") from None
