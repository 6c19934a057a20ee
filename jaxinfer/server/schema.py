"""Request bodies as they come in. A field that is not named here is refused."""

from typing import Any

import msgspec


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """include_usage: a last chunk tells the usage. continuous_usage_stats: every chunk does. include_timings: a usage
    that is told has timings, and the last chunk tells it.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_timings: bool | None = None


class NotSupported(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Known from OpenAI or vLLM, not supported yet: a value that asks for something is refused by name."""

    allowed_token_ids: Any = None
    audio: Any = None
    bad_words: Any = None
    chat_template: Any = None
    continue_final_message: Any = None
    documents: Any = None
    function_call: Any = None
    functions: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    kv_transfer_params: Any = None
    length_penalty: Any = None
    modalities: Any = None
    moderation: Any = None
    prediction: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    reasoning_effort: Any = None
    response_format: Any = None
    spaces_between_special_tokens: Any = None
    structured_outputs: Any = None
    suffix: Any = None
    use_beam_search: Any = None
    verbosity: Any = None
    web_search_options: Any = None


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "continue_final_message": (False,),
    "functions": ([],),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "spaces_between_special_tokens": (True,),
    "suffix": ("",),
    "use_beam_search": (False,),
}
"""Values of unsupported fields that ask for nothing but what is done anyway."""


class WithoutEffect(NotSupported, forbid_unknown_fields=True, kw_only=True):
    """Accepted, without effect: the documented list."""

    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    user: str | None = None


class GenerateBody(WithoutEffect, forbid_unknown_fields=True, kw_only=True):
    """What both generating endpoints take. Null means: not said."""

    model: str | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    prompt_logprobs: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include_timings: bool | None = None

    @property
    def wants_timings(self) -> bool:
        """Asked for, in either place."""
        return bool(self.include_timings or (self.stream_options is not None and self.stream_options.include_timings))


class CompletionBody(GenerateBody, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
