"""From a request's prompt to token ids."""

from typing import Any, NamedTuple

import msgspec
import numpy as np

from jaxinfer.engine.types import ModelInfo
from jaxinfer.serving.bodies.chat_schema import Message
from jaxinfer.serving.bodies.schema import CompletionBody
from jaxinfer.serving.errors import RequestError
from jaxinfer.serving.requests.params import Truncation, check_fim, check_ids, check_length
from jaxinfer.text import TextProcessor
from jaxinfer.text.messages import REASONING_NAMES, template_message
from jaxinfer.text.tools import check_tools

_MIXED = "prompt: must be a text, a list of texts, a list of token ids, or a list of lists of token ids"

MAX_MESSAGES = 10_000
"""Messages of a conversation, and text parts and tool calls of all its messages together."""


class Prompt(NamedTuple):
    """Token ids, int32 [n], what errors call the prompt, and its text where it came as one."""

    token_ids: np.ndarray
    param: str
    text: str | None = None


class Conversation(NamedTuple):
    """What a chat template renders. tools: of OpenAI's form. template_kwargs: from the template's allow-list.

    continue_final_message: the prompt ends with the last message, open-ended.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = False
    continue_final_message: bool = False


async def completion_prompts(
    body: CompletionBody, text: TextProcessor, info: ModelInfo, max_prompts: int, cut: Truncation
) -> list[Prompt]:
    """Every prompt of a completion request, cut as it asks for. Raises RequestError or ParameterError."""
    if body.suffix:
        return await _fim_prompts(body, text, info, max_prompts, cut)
    prompts = _as_list(body.prompt, info, max_prompts, cut)
    params = _names(body.prompt, len(prompts))
    texts = {param: prompt for prompt, param in zip(prompts, params, strict=True) if isinstance(prompt, str)}
    ids = {param: prompt for prompt, param in zip(prompts, params, strict=True) if isinstance(prompt, list)}
    ids = {param: _id_array(cut(prompt), info, param) for param, prompt in ids.items()}
    special, parse = body.add_special_tokens is not False, body.parse_special is not False
    encoded = await text.encode_async(
        list(texts.values()), add_special_tokens=special, params=list(texts), parse_special=parse
    )
    ids.update((param, np.array(cut(one), np.int32)) for param, one in zip(texts, encoded, strict=True))
    return [Prompt(ids[param], param, texts.get(param)) for param in params]


async def _fim_prompts(
    body: CompletionBody, text: TextProcessor, info: ModelInfo, max_prompts: int, cut: Truncation
) -> list[Prompt]:
    """Prompts that ask for what stands between each of them and `suffix`."""
    prompts = _as_list(body.prompt, info, max_prompts, cut)
    params = _names(body.prompt, len(prompts))
    suffix, special = body.suffix or "", body.add_special_tokens is not False
    check_fim(body)
    if body.echo:
        raise RequestError("echo: is not supported together with suffix", param="echo")
    found = []
    for prompt, param in zip(prompts, params, strict=True):
        if not isinstance(prompt, str):
            raise RequestError(f"{param}: must be a text where suffix is given", param=param)
        parse = body.parse_special is not False
        ids = await text.fim_prompt(prompt, suffix, add_special_tokens=special, parse_special=parse)
        check_length(ids, info, param)
        found.append(Prompt(np.array(ids, np.int32), param, prompt))
    return found


def _id_array(ids: list[int], info: ModelInfo, param: str) -> np.ndarray:
    check_length(ids, info, param)
    check_ids(ids, info, param)
    return np.array(ids, np.int32)


def _as_list(prompt: str | list[Any], info: ModelInfo, max_prompts: int, cut: Truncation) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("prompt: is empty; give a text or token ids", param="prompt")
    if isinstance(prompt[0], int):
        # NOTE: lengths come first; a walk over millions of ids would hold up every other client.
        prompt = cut(prompt)
        check_length(prompt, info, "prompt")
        if not all(isinstance(item, int) for item in prompt):
            raise RequestError(_MIXED, param="prompt")
        return [prompt]
    if len(prompt) > max_prompts:
        message = f"prompt: has {len(prompt)} prompts; at most {max_prompts} are allowed in one request"
        raise RequestError(message, param="prompt")
    if all(isinstance(item, str) for item in prompt) or all(isinstance(item, list) for item in prompt):
        return prompt
    raise RequestError(_MIXED, param="prompt")


def _names(prompt: Any, count: int) -> list[str]:
    """What errors call each prompt: `prompt`, or `prompt[i]` where there is a list of them."""
    many = isinstance(prompt, list) and not isinstance(prompt[0], int)
    return [f"prompt[{i}]" if many else "prompt" for i in range(count)]


async def chat_prompt(conversation: Conversation, text: TextProcessor) -> Prompt:
    """The prompt of a conversation, by the model's template. Raises RequestError or ParameterError."""
    if not conversation.messages:
        raise RequestError("messages: is empty", param="messages")
    _check_count(conversation.messages)
    messages = [_plain(message, f"messages[{i}]") for i, message in enumerate(conversation.messages)]
    for i, message in enumerate(messages):
        text.tokenizer.check_text(message["content"], f"messages[{i}].content")
    if conversation.tools:
        check_tools(conversation.tools)
    # A template writes the special tokens itself, the first one included.
    rendered = await text.conversations.encode_async(
        messages,
        add_special_tokens=conversation.add_special_tokens,
        tools=conversation.tools,
        add_generation_prompt=conversation.add_generation_prompt,
        continue_final_message=conversation.continue_final_message,
        template_kwargs=conversation.template_kwargs,
    )
    return Prompt(np.array(rendered.token_ids, np.int32), "messages", rendered.text)


def _check_count(messages: list[Message]) -> None:
    parts = sum(len(message.content) for message in messages if isinstance(message.content, list))
    calls = sum(len(message.tool_calls or ()) for message in messages)
    for count, name in ((len(messages), "messages"), (parts, "text parts"), (calls, "tool calls")):
        if count > MAX_MESSAGES:
            raise RequestError(f"messages: has {count} {name}; at most {MAX_MESSAGES} are allowed", param="messages")


def _plain(message: Message, where: str) -> dict[str, Any]:
    for name in ("audio", "function_call", "refusal"):
        if getattr(message, name):
            param = f"{where}.{name}"
            raise RequestError(f"{param} is not supported yet", param=param, code="unsupported_parameter")
    said = msgspec.to_builtins(message)
    return template_message({name: said[name] for name in _TEMPLATE_FIELDS if said[name] is not None}, where)


_TEMPLATE_FIELDS = ("role", "content", "name", *REASONING_NAMES, "tool_calls", "tool_call_id")
