"""From a request's prompt to token ids."""

from typing import Any, NamedTuple

from jaxinfer.engine.types import ModelInfo
from jaxinfer.server.errors import ApiError
from jaxinfer.server.params import check_length
from jaxinfer.server.schema import ChatBody, CompletionBody, Message
from jaxinfer.text import TextProcessor
from jaxinfer.text.messages import content_text

MAX_MESSAGES = 10_000
"""Messages of a conversation, and text parts of all its messages together."""

_ROLES = ("system", "developer", "user", "assistant", "tool")


class Prompt(NamedTuple):
    """Token ids, and what errors call the prompt."""

    token_ids: list[int]
    param: str


async def completion_prompts(
    body: CompletionBody, text: TextProcessor, info: ModelInfo, max_prompts: int
) -> list[Prompt]:
    """Every prompt of a completion request. Raises ApiError or ParameterError."""
    prompts = _as_list(body.prompt, info, max_prompts)
    params = _names(body.prompt, len(prompts))
    texts = {param: prompt for prompt, param in zip(prompts, params, strict=True) if isinstance(prompt, str)}
    ids = {param: prompt for prompt, param in zip(prompts, params, strict=True) if isinstance(prompt, list)}
    for param, prompt in ids.items():
        _check_ids(prompt, info, param)
    special = body.add_special_tokens is not False
    encoded = await text.encode_async(list(texts.values()), add_special_tokens=special, params=list(texts))
    ids.update(zip(texts, encoded, strict=True))
    return [Prompt(ids[param], param) for param in params]


def _as_list(prompt: str | list[Any], info: ModelInfo, max_prompts: int) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise ApiError(400, "prompt: is empty; give a text or token ids", param="prompt")
    if isinstance(prompt[0], int):
        # NOTE: lengths come first; a walk over millions of ids would hold up every other client.
        check_length(prompt, info, "prompt")
        if all(isinstance(item, int) for item in prompt):
            return [prompt]
    if len(prompt) > max_prompts:
        message = f"prompt: has {len(prompt)} prompts; at most {max_prompts} are allowed in one request"
        raise ApiError(400, message, param="prompt")
    if all(isinstance(item, str) for item in prompt) or all(isinstance(item, list) for item in prompt):
        return prompt
    message = "prompt: must be a text, a list of texts, a list of token ids, or a list of lists of token ids"
    raise ApiError(400, message, param="prompt")


def _names(prompt: Any, count: int) -> list[str]:
    """What errors call each prompt: `prompt`, or `prompt[i]` where there is a list of them."""
    many = isinstance(prompt, list) and not isinstance(prompt[0], int)
    return [f"prompt[{i}]" if many else "prompt" for i in range(count)]


def _check_ids(ids: list[int], info: ModelInfo, param: str) -> None:
    check_length(ids, info, param)
    if ids and (min(ids) < 0 or max(ids) >= info.vocab_size):
        wrong = next(token for token in ids if not 0 <= token < info.vocab_size)
        message = f"{param}: token id {wrong} is not in the vocabulary, 0 to {info.vocab_size - 1}"
        raise ApiError(400, message, param=param)


async def chat_prompt(body: ChatBody, text: TextProcessor) -> list[int]:
    """Token ids of a conversation, by the model's template. Raises ApiError or ParameterError."""
    if not body.messages:
        raise ApiError(400, "messages: is empty", param="messages")
    _check_count(body.messages)
    messages = [_plain(message, f"messages[{i}]") for i, message in enumerate(body.messages)]
    for i, message in enumerate(messages):
        text.tokenizer.check_text(message["content"], f"messages[{i}].content")
    rendered = await text.chat_template.render_async(
        messages,
        add_generation_prompt=body.add_generation_prompt is not False,
        template_kwargs=body.chat_template_kwargs,
    )
    # A template writes the special tokens itself, the first one included.
    added = body.add_special_tokens is True
    return (await text.encode_async([rendered], add_special_tokens=added, params=["messages"]))[0]


def _check_count(messages: list[Message]) -> None:
    parts = sum(len(message.content) for message in messages if isinstance(message.content, list))
    for count, name in ((len(messages), "messages"), (parts, "text parts")):
        if count > MAX_MESSAGES:
            raise ApiError(400, f"messages: has {count} {name}; at most {MAX_MESSAGES} are allowed", param="messages")


def _plain(message: Message, where: str) -> dict[str, str]:
    if message.role not in _ROLES:
        raise ApiError(400, f"{where}.role: {message.role!r} is none of {', '.join(_ROLES)}", param=f"{where}.role")
    for name in ("annotations", "audio", "function_call", "reasoning", "refusal", "tool_call_id", "tool_calls"):
        if getattr(message, name):
            param = f"{where}.{name}"
            raise ApiError(400, f"{param} is not supported yet", param=param, code="unsupported_parameter")
    if message.role == "tool":
        raise ApiError(400, "role `tool` is not supported yet", param=f"{where}.role", code="unsupported_parameter")
    # OpenAI's newer name of the system role, which few templates know and some drop in silence.
    role = "system" if message.role == "developer" else message.role
    plain = {"role": role, "content": content_text(message.content, f"{where}.content")}
    optional = {"name": message.name, "reasoning_content": message.reasoning_content}
    return plain | {name: value for name, value in optional.items() if value is not None}
