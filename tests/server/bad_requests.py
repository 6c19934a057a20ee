"""The table of bad requests: what a client sends, and what it must be told."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

COMPLETIONS, CHAT, TOKENIZE, DETOKENIZE = "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"
USER = {"role": "user", "content": "hi"}


class Bad(NamedTuple):
    """A request, and its answer: status, the field that is named, and words of the message."""

    path: str
    body: Any
    status: int
    param: str | None
    said: str
    headers: Mapping[str, str] = MappingProxyType({})

    @property
    def data(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


def text(said: str, param: str | None = None, status: int = 400, **body: Any) -> Bad:
    """A completion with something wrong in it; the wrong field is the first that is given."""
    return Bad(COMPLETIONS, {"prompt": "a", **body}, status, param or next(iter(body)), said)


def chat(said: str, param: str | None = None, status: int = 400, **body: Any) -> Bad:
    """The same for a chat."""
    return Bad(CHAT, {"messages": [USER], **body}, status, param or next(iter(body)), said)


def message(said: str, where: str, *messages: Any) -> Bad:
    """A conversation with something wrong in a message."""
    return Bad(CHAT, {"messages": list(messages)}, 400, where, said)


def raw(said: str, data: bytes, path: str = COMPLETIONS, status: int = 400, param: str | None = None) -> Bad:
    """Bytes as they are."""
    return Bad(path, data, status, param, said)


CALLED = {"name": "f", "arguments": "{}"}
FUNCTION = {"type": "function", "function": {"name": "f"}}

BAD = {
    # what is no JSON, or no object of the right shape
    "no body": raw("JSON", b""),
    "half a body": raw("JSON", b'{"prompt": "a'),
    "no JSON": raw("JSON", b"prompt=a"),
    "two bodies": raw("JSON", b'{"prompt": "a"}{"prompt": "b"}'),
    "a list": raw("object", b"[]"),
    "a text": raw("object", b'"hello"'),
    "null": raw("object", b"null"),
    "bad UTF-8": raw("UTF-8", b'{"prompt": "\xff\xfe"}'),
    "UTF-16": raw("JSON", '{"prompt": "a"}'.encode("utf-16")),
    "a high surrogate": raw("JSON", b'{"prompt": "\\ud800"}'),
    "a low surrogate": raw("surrogate", b'{"prompt": "\\udc00x"}'),
    "a surrogate in a message": raw("JSON", b'{"messages": [{"role": "user", "content": "\\ud83d"}]}', CHAT),
    "NaN": raw("JSON", b'{"prompt": "a", "temperature": NaN}'),
    "infinity": raw("range", b'{"prompt": "a", "temperature": 1e999}', param="temperature"),
    "lists without end": raw("JSON", b"[" * 100_000),
    "objects without end": raw("JSON", b'{"metadata": ' + b'{"a":' * 50_000),
    "a comment": raw("JSON", b'{"prompt": "a"} // a prompt'),
    "a control character": raw("JSON", b'{"prompt": "a\n"}'),
    "form data": Bad(
        COMPLETIONS, b"prompt=a", 415, None, "application/json",
        {"Content-Type": "application/x-www-form-urlencoded"},
    ),
    "plain text": Bad(COMPLETIONS, {"prompt": "a"}, 415, None, "application/json", {"Content-Type": "text/plain"}),
    "a compressed body": Bad(COMPLETIONS, b"x", 415, None, "compressed", {"Content-Encoding": "gzip"}),
    "a body that is too large": Bad(COMPLETIONS, {"prompt": "a" * 1_100_000}, 413, None, "1000000"),
    # fields that are missing, unknown, or of the wrong type
    "no prompt": Bad(COMPLETIONS, {}, 400, "prompt", "missing"),
    "no messages": Bad(CHAT, {}, 400, "messages", "missing"),
    "tensors": text("not supported", prompt_embeds="gASV"),
    "a number for a text": text("must be ", prompt=5),
    "null for a prompt": text("must be ", prompt=None),
    "an object for a prompt": text("must be ", prompt={"a": 1}),
    "a mixed prompt": text("list of texts", prompt=["a", 5]),
    "a mixed prompt that is cut": text("list of texts", prompt=[5, "a"], truncate_prompt_tokens=1),
    "a text for a number": text("must be ", max_tokens="ten"),
    "a fraction of a token": text("must be ", max_tokens=1.5),
    "a truth for a number": text("must be ", n=True),
    "a text for a truth": text("must be ", stream="yes"),
    "a list for a number": text("must be ", temperature=[1]),
    "a number for stop": text("must be ", stop=5),
    "an object for stop_token_ids": text("must be ", stop_token_ids={"a": 1}),
    "a text in stop_token_ids": text("must be ", "stop_token_ids[0]", stop_token_ids=["a"]),
    "a bias that is no number": text("must be a number", "logit_bias", logit_bias={"5": "much"}),
    "a bias of no token": text("'a'", "logit_bias", logit_bias={"a": 1}),
    "metadata that is no object": text("must be ", metadata="a"),
    "a model that is no name": text("must be ", model=5),
    # numbers out of range
    "no choices": text("out of range", n=0),
    "too many choices": text("out of range", n=129),
    "a huge number": text("", n=10**30),
    "no tokens": text("out of range", max_tokens=0),
    "fewer than no tokens": text("out of range", max_tokens=-1),
    "more tokens than an int32": text("out of range", max_tokens=2**40),
    "more tokens than the context": text("context", max_tokens=257),
    "min_tokens above max_tokens": text("max_tokens", min_tokens=9, max_tokens=5),
    "a temperature below zero": text("out of range", temperature=-0.1),
    "too hot": text("out of range", temperature=101),
    "top_p below zero": text("out of range", top_p=-0.1),
    "top_p above one": text("out of range", top_p=1.01),
    "top_k below -1": text("out of range", top_k=-2),
    "min_p above one": text("out of range", min_p=1.5),
    "a seed that is too long": text("out of range", seed=2**63),
    "a presence penalty": text("out of range", presence_penalty=2.1),
    "a frequency penalty": text("out of range", frequency_penalty=-2.1),
    "a repetition penalty of zero": text("out of range", repetition_penalty=0),
    "too many log-probabilities": text("out of range", logprobs=21),
    "too many of the prompt": text("out of range", prompt_logprobs=21),
    "log-probabilities of a prompt in a stream": text("stream", prompt_logprobs=1, stream=True),
    "too many stop strings": text("at most 16", stop=["x"] * 17),
    "an empty stop string": text("1 to 256", stop=[""]),
    "a long stop string": text("1 to 256", stop="x" * 257),
    "too many stop tokens": text("at most 32", stop_token_ids=[1] * 33),
    "a stop token that does not exist": text("vocabulary", stop_token_ids=[10**6]),
    "too many biases": text("at most 300", logit_bias={str(i): 1 for i in range(301)}),
    "too much bias": text("out of range", logit_bias={"5": 101}),
    "a bias of a token that does not exist": text("vocabulary", logit_bias={"1000000": 1}),
    "a priority that is too long": text("at most", priority=2**31),
    "an empty salt": text("1 to 256", cache_salt=""),
    "best_of below n": text("less than n", best_of=1, n=2),
    "best_of with no choices": text("out of range", "n", n=0, best_of=2),
    "best_of with fewer than no choices": text("out of range", "n", n=-3, best_of=2),
    "best_of above the most": text("out of range", best_of=129),
    "a model of a megabyte": text("is not served", status=404, model="m" * 400_000),
    "best_of in a stream": text("stream", best_of=2, stream=True),
    "stream options without a stream": text("needs stream", stream_options={"include_usage": True}),
    "nothing kept of a prompt": text("out of range", truncate_prompt_tokens=0),
    "a name with spaces": text("1 to 128", request_id="a b"),
    # prompts that are empty, huge, or not of this model
    "an empty prompt": text("empty", prompt=""),
    "a list of no prompts": text("empty", prompt=[]),
    "an empty prompt among others": text("empty", "prompt[1]", prompt=["a", ""]),
    "an empty list of tokens": text("empty", "prompt[0]", prompt=[[]]),
    "a token that does not exist": text("vocabulary", prompt=[10**9]),
    "a token below zero": text("vocabulary", prompt=[-1]),
    "a token of 70 bits": text("", prompt=[2**70]),
    "a prompt as long as the context": text("256 tokens", prompt=[1] * 256),
    "a text that is too long for the context": text("context", prompt="b" * 5000),
    "a text that is too long for the tokenizer": text("characters", prompt="b" * 60_000),
    "too many prompts": text("at most 64", prompt=["a"] * 65),
    "too many choices over all prompts": text("at most 256", "n", prompt=["a"] * 3, n=100),
    "another model": text("is not served", status=404, model="gpt-5"),
    "another model in a chat": chat("is not served", status=404, model="gpt-5"),
    # what is known, but not supported
    "a suffix without tokens for it": text("filling in the middle", "suffix", suffix="z"),
    "echo of nothing that is continued": chat("continue_final_message", echo=True),
    "an effort that is not known": chat("Invalid", reasoning_effort="huge"),
    "a side that is not known": text("Invalid", truncation_side="middle", truncate_prompt_tokens=2),
    "continuing and beginning": chat("add_generation_prompt", continue_final_message=True, add_generation_prompt=True),
    "beam search": text("not supported", use_beam_search=True),
    "two grammars": text("give one", structured_outputs={"regex": "a+", "choice": ["b"]}),
    "grammars in two fields": text("both say", "guided_regex", guided_regex="a", structured_outputs={"regex": "a"}),
    "no known format": chat("must be one of text", "response_format.type", response_format={"type": "yaml"}),
    "a format without a schema": chat(
        "give a JSON Schema", "response_format.json_schema.schema",
        response_format={"type": "json_schema", "json_schema": {"name": "x"}},
    ),
    "a format without its object": chat(
        "give a JSON Schema", "response_format.json_schema", response_format={"type": "json_schema"}
    ),
    "a structural tag of another form": text(
        "is not supported", "structured_outputs.structural_tag.format.type",
        structured_outputs={"structural_tag": {"format": {"type": "minimax_xml"}}},
    ),
    "a structural tag as a format, without its parts": chat(
        "needs either format", "response_format", response_format={"type": "structural_tag"}
    ),
    "a structural tag that is no JSON": text(
        "is not JSON", "structured_outputs.structural_tag", structured_outputs={"structural_tag": "{"}
    ),
    "white space of a regex": text(
        "goes with JSON", "guided_whitespace_pattern", guided_regex="a", guided_whitespace_pattern=" "
    ),
    "fixed white space beside a pattern of it": text(
        "contradicts whitespace_pattern", "structured_outputs.disable_any_whitespace",
        structured_outputs={"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True},
    ),
    "fixed white space of a choice": text(
        "goes with JSON", "structured_outputs.disable_any_whitespace",
        structured_outputs={"choice": ["a"], "disable_any_whitespace": True},
    ),
    "old functions": chat("not supported", functions=[{"name": "f"}]),
    "sound": chat("not supported", modalities=["text", "audio"]),
    "a template of the client's own": chat("not supported", chat_template="{{ 1 }}"),
    # messages
    "no message at all": message("empty", "messages"),
    "no name of a role": message("1 to 64", "messages[0].role", {"role": "", "content": "x"}),
    "a long role": message("1 to 64", "messages[0].role", {"role": "x" * 65, "content": "x"}),
    "no role": message("missing", "messages[0].role", {"content": "x"}),
    "no content": message("missing", "messages[0].content", {"role": "user"}),
    "a number for content": message("must be ", "messages[0].content", {"role": "user", "content": 5}),
    "an image": message(
        "image_url", "messages[0].content[0].type",
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}}]},
    ),
    "a part without a text": message("text", "messages[0].content[0]", {"role": "user", "content": [{"type": "text"}]}),
    "a part whose type is an object": message(
        "{'a': 1} is not supported", "messages[0].content[0].type", {"role": "user", "content": [{"type": {"a": 1}}]}
    ),
    "a part that is no object": message("must be ", "messages[0].content[0]", {"role": "user", "content": ["a"]}),
    "too many messages": message("10001 messages", "messages", *[USER] * 10_001),
    "calls of a user": message(
        "assistant", "messages[0].tool_calls",
        {**USER, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
    ),
    "arguments that are neither a text nor an object": message(
        "not an array", "messages[0].tool_calls[0].function.arguments",
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]},
    ),
    "a conversation that is too long": message("tokens", "messages", {"role": "user", "content": "b" * 5000}),
    "a template bomb": message("memory", "messages", {"role": "user", "content": "boom"}),
    "too many calls": message(
        "tool calls", "messages", {"role": "assistant", "tool_calls": [{"function": CALLED}] * 10_001}
    ),
    "two thoughts": message(
        "differs",
        "messages[0].reasoning",
        {"role": "assistant", "content": "a", "reasoning": "b", "reasoning_content": "c"},
    ),
    # what only chats have
    "top_logprobs alone": chat("logprobs", top_logprobs=1),
    "too many top_logprobs": chat("out of range", top_logprobs=21, logprobs=True),
    "a number for logprobs": chat("must be ", logprobs=3),
    "two lengths": chat("old name", max_completion_tokens=5, max_tokens=6),
    "no completion tokens": chat("out of range", max_completion_tokens=0),
    "template arguments that are reserved": chat(
        "not allowed", "chat_template_kwargs.messages", chat_template_kwargs={"messages": []},
    ),
    "template arguments that nobody reads": chat(
        "not allowed", "chat_template_kwargs.colour", chat_template_kwargs={"colour": 1},
    ),
    "tools that the template does not take": chat("not known", tools=[FUNCTION]),
    "a tool of another kind": chat("Invalid", "tools[0].type", tools=[{"type": "search"}]),
    "a choice that is not known": chat("is not known", tool_choice="always", tools=[FUNCTION]),
    "a choice of another kind": chat("is not known", tool_choice={"type": "custom"}, tools=[FUNCTION]),
    "calls without tools": chat("needs tools", tool_choice="required"),
    "a named function without a name": chat(
        "must be", "tool_choice", tool_choice={"type": "function"}, tools=[FUNCTION]
    ),
    "a function that is no tool": chat(
        "is none of the tools", "tool_choice.function.name", tools=[FUNCTION],
        tool_choice={"type": "function", "function": {"name": "g"}},
    ),
    "allowed tools without a mode": chat(
        "is not known", "tool_choice.allowed_tools.mode", tools=[FUNCTION],
        tool_choice={"type": "allowed_tools", "allowed_tools": {"tools": [FUNCTION]}},
    ),
    "no allowed tools": chat(
        "must be a list", "tool_choice.allowed_tools.tools", tools=[FUNCTION],
        tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
    ),
    "an allowed tool that is none": chat(
        "is none of the tools", "tool_choice.allowed_tools.tools[0].function.name", tools=[FUNCTION],
        tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
            {"type": "function", "function": {"name": "g"}}]}},
    ),
    "a choice without tools": chat("needs tools", tool_choice="auto"),
    "thinking that is neither on nor off": chat("Invalid", "thinking.type", thinking={"type": "perhaps"}),
    "thinking that the template does not know": chat("does not read", thinking={"type": "enabled"}),
    # tokens
    "nothing to tokenise": Bad(TOKENIZE, {}, 400, "prompt", "either"),
    "two things to tokenise": Bad(TOKENIZE, {"prompt": "a", "messages": [USER]}, 400, "prompt", "either"),
    "a number to tokenise": Bad(TOKENIZE, {"prompt": 1}, 400, "prompt", "must be "),
    "a text that is too long to tokenise": Bad(TOKENIZE, {"prompt": "b" * 60_000}, 400, "prompt", "characters"),
    "no tokens to read": Bad(DETOKENIZE, {}, 400, "tokens", "missing"),
    "tokens that do not exist": Bad(DETOKENIZE, {"tokens": [-1]}, 400, "tokens", "vocabulary"),
}  # fmt: skip
