"""Request bodies of both generating endpoints, and of completions. Other fields: see unknown_fields.py."""

from typing import Any, Literal, cast

import msgspec

from jaxinfer.sampling import parameters


class StreamOptions(msgspec.Struct, kw_only=True):
    """include_usage: a last chunk has the usage. continuous_usage_stats: with it, every chunk has. include_timings: the
    usage has timings, and the last chunk has the usage.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_timings: bool | None = None


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "chat_template": (),
    "documents": ([],),
    "ebnf": (),
    "ec_transfer_params": ({},),
    "function_call": ("none",),
    "functions": ([],),
    "grammar": (),
    "json_schema": (),
    "kv_transfer_params": ({},),
    "length_penalty": (1.0,),
    "logprob_token_ids": ([],),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "prompt_cache_options": (),
    "prompt_embeds": (),
    "regex": (),
    "repetition_detection": (),
    "return_prompt_text": (False,),
    "return_weight_versions": (False,),
    "routed_experts_prompt_start": (0,),
    "spaces_between_special_tokens": (True,),
    "thinking_token_budget": (-1,),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermarking": (False,),
    "web_search_options": (),
}
"""Fields of OpenAI's, vLLM's or others' schema that are not supported yet, each with values that ask for nothing but
what is done anyway: any other is refused by name.
"""

NotSupported = msgspec.defstruct(
    "NotSupported", [(name, Any, None) for name in NEUTRAL], forbid_unknown_fields=True, kw_only=True
)


class WithoutEffect(NotSupported, forbid_unknown_fields=True, kw_only=True):
    """Accepted, without effect: the documented list."""

    metadata: dict[str, Any] | None = None
    mm_payload: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    return_mm_kwargs: bool | None = None
    return_token_offsets: bool | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    session_id: str | None = None
    store: bool | None = None
    stream_interval: int | None = None
    verbosity: str | None = None


def _with_parameters(base: type[WithoutEffect]) -> type[WithoutEffect]:
    """The scalars of SamplingParams but `logprobs`, which has another form in each endpoint."""
    fields = [(name, parameter.kind | None, None) for name, parameter in parameters().items() if name != "logprobs"]
    made = msgspec.defstruct(
        "SamplingFields", fields, bases=(base,), module=__name__, forbid_unknown_fields=True, kw_only=True
    )
    return cast(type[WithoutEffect], made)


class GenerateBody(_with_parameters(WithoutEffect), forbid_unknown_fields=True, kw_only=True):
    """Fields that both generating endpoints have. Null means: absent."""

    # Of the parameters, those that are read by name.
    n: int | None = None
    max_tokens: int | None = None
    seed: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool | None = None

    model: str | None = None
    logit_bias: dict[str, Any] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: str | list[str] | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    user: str | dict[str, Any] | None = None
    request_id: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include_timings: bool | None = None
    # What the text must be (requests/structured.py).
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None

    @property
    def wants_timings(self) -> bool:
        """True where they are asked for, in either place."""
        return bool(self.include_timings or (self.stream_options is not None and self.stream_options.include_timings))


class CompletionBody(GenerateBody, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    suffix: str | None = None
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    parse_special: bool | None = None
