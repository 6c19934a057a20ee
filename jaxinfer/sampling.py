"""Sampling parameters of a request, in one table. Validated once, here, at the edge."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from jaxinfer.constraint import Constraint
from jaxinfer.errors import ParameterError
from jaxinfer.parameter import Column, Parameter, boolean, integer, number

# The one table of caps. Slot state on the device has arrays of these widths, so that a client
# cannot ask for more than was allocated at start.
MAX_N = 128
MAX_STOP_TOKEN_IDS = 64  # end-of-sequence ids included
MAX_LOGIT_BIAS = 300  # OpenAI's own bound
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARS = 256
MAX_BAD_TOKENS = 2048  # of one word; a character is four bytes at most, before a normaliser expands it
MAX_LOGPROBS = 20

if TYPE_CHECKING:
    _StructuredOutputs = Constraint | Mapping[str, Any]
else:
    _StructuredOutputs = Constraint  # between processes, where fields are read by their types, it is always one

_INT32_MAX = 2**31 - 1
_SEED_MAX = 2**63 - 1
_TOKEN_ID = Parameter(int, None, 0, _INT32_MAX)
_BIAS = Parameter(float, None, -100.0, 100.0)


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters and stop conditions. Names and meaning are vLLM's.

    n: choices to generate for one prompt, 1..128.
    max_tokens: most tokens to generate a choice; None: up to the end of the context.
    min_tokens: end-of-sequence and stop ids are banned before this many tokens.
    temperature: 0 is greedy; at most 100.
    top_p: in [0, 1]; 0 is greedy. top_k: 0 or -1 is off. min_p: in [0, 1].
    top_n_sigma: llama.cpp's; only logits of at least the highest less so many standard deviations; 0 or less is off.
    seed: None draws one. The random number of a token depends on seed, choice and position alone. Its probabilities are
    rounded as the shapes of their step have it, which other requests and the prefix cache change: in float32 by so
    little that a request gives the same tokens whatever runs beside it, but for a draw within about 1e-5 of a boundary
    between tokens; in bfloat16 and float16 some requests take another token at such a draw.
    presence_penalty, frequency_penalty: in [-2, 2], over generated tokens.
    repetition_penalty: in (0, 10], over prompt and generated tokens; 1 is off.
    logit_bias: token id -> bias in [-100, 100], at most 300 entries.
    logprobs: how many of the most likely tokens to report, 0..20; 0 reports the sampled one only, -1 is 20.
    prompt_logprobs: the same for each token of the prompt.
    allowed_token_ids: the only ids that may be drawn, end-of-sequence and stop ids included; empty: all.
    bad_words: strings whose tokens are not drawn, at most 128.
    bad_token_ids: the same as token ids: the last of each is not drawn if those before it are the newest of the output.
    The engine reads these alone; whoever has the tokenizer adds those of bad_words (text/tokenizer/bad_words.py).
    structured_outputs: constraint on the text, as a Constraint or in HTTP's form, `{"json": schema}`, which becomes
    one. A grammar that can only end ends it; `min_tokens` gives way to it.
    stop: strings that end the text. stop_token_ids: ids that end it.
    """

    n: int = integer(1, 1, MAX_N)
    max_tokens: int | None = integer(
        16, 1, _INT32_MAX, optional=True, generation_key="max_new_tokens",
        flag="Most tokens to generate; by default 128 in `generate`, and up to the end of the context in `chat`.",
    )  # fmt: skip
    min_tokens: int = integer(0, 0, _INT32_MAX, neutral=0, flag="Nothing ends the text before this many tokens.")
    temperature: float = number(
        1.0, 0.0, 100.0, neutral=0.0, generation_key="temperature",
        flag="0 is greedy.",
    )  # fmt: skip
    top_p: float = number(
        1.0, 0.0, 1.0, neutral=1.0, generation_key="top_p",
        flag="Smallest set of tokens with this much probability; 0 is greedy.",
    )  # fmt: skip
    top_k: int = integer(
        0, 0, _INT32_MAX, minus_one=0, neutral=0, generation_key="top_k",
        flag="Only the k likeliest tokens; 0 is off.",
    )  # fmt: skip
    min_p: float = number(
        0.0, 0.0, 1.0, neutral=0.0, generation_key="min_p",
        flag="Only tokens with this share of the likeliest one's probability.",
    )  # fmt: skip
    top_n_sigma: float = number(
        0.0, -1.0, 100.0, neutral=0.0,
        flag="Only tokens whose logit is at most so many standard deviations below the highest; 0 is off.",
    )  # fmt: skip
    seed: int | None = integer(
        None, -_SEED_MAX - 1, _SEED_MAX, optional=True,
        flag="The same seed gives the same text.",
    )  # fmt: skip
    presence_penalty: float = number(
        0.0, -2.0, 2.0, neutral=0.0,
        flag="Above 0 makes tokens that were generated less likely.",
    )  # fmt: skip
    frequency_penalty: float = number(0.0, -2.0, 2.0, neutral=0.0, flag="The same, for each time that they were.")
    repetition_penalty: float = number(
        1.0, 0.0, 10.0, above_low=True, neutral=1.0, generation_key="repetition_penalty",
        flag="Above 1 makes tokens of prompt and text less likely.",
    )  # fmt: skip
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = integer(None, 0, MAX_LOGPROBS, optional=True, minus_one=MAX_LOGPROBS)
    prompt_logprobs: int | None = integer(None, 0, MAX_LOGPROBS, optional=True, minus_one=MAX_LOGPROBS)
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    allowed_token_ids: Sequence[int] = ()
    bad_words: Sequence[str] = ()
    bad_token_ids: Sequence[Sequence[int]] = ()
    structured_outputs: _StructuredOutputs | None = None
    include_stop_str_in_output: bool = boolean(False, flag="Show the stop string, too.")
    ignore_eos: bool = boolean(False, flag="Go on after the end-of-sequence token.")
    skip_special_tokens: bool = boolean(True, flag="Leave special tokens out of the text.")

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        object.__setattr__(self, "logit_bias", dict(self.logit_bias or {}))
        object.__setattr__(self, "allowed_token_ids", tuple(self.allowed_token_ids or ()))
        words = (self.bad_words,) if isinstance(self.bad_words, str) else tuple(self.bad_words or ())
        object.__setattr__(self, "bad_words", words)
        object.__setattr__(self, "bad_token_ids", tuple(map(tuple, self.bad_token_ids or ())))
        if isinstance(self.structured_outputs, Mapping):
            object.__setattr__(self, "structured_outputs", Constraint.outputs(self.structured_outputs))
        self._check_scalars()
        if self.top_p == 0:  # OpenAI's least: the likeliest token alone
            object.__setattr__(self, "top_p", 1.0)
            object.__setattr__(self, "temperature", 0.0)
        self._check_stops()
        self._check_bias()
        self._check_token_rules()
        if not isinstance(self.structured_outputs, Constraint | None):
            given = type(self.structured_outputs).__name__
            message = f'must be {{"json": schema}}, or another object of HTTP\'s form, or a Constraint, not {given}'
            raise ParameterError("structured_outputs", message)

    @property
    def constraint(self) -> Constraint | None:
        """`structured_outputs`, which is a Constraint by now."""
        assert not isinstance(self.structured_outputs, Mapping)
        return self.structured_outputs

    @property
    def greedy(self) -> bool:
        """True where the most likely token is taken."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def uses_counts(self) -> bool:
        """True where a penalty needs to know which tokens were seen."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    @property
    def has_token_rules(self) -> bool:
        """True where token ids, or sequences of them, are forbidden."""
        return bool(self.allowed_token_ids or self.bad_token_ids)

    def _check_scalars(self) -> None:
        for name, parameter in parameters().items():
            value = getattr(self, name)
            if value == -1 and parameter.minus_one is not None:
                value = parameter.minus_one
                object.__setattr__(self, name, value)
            parameter.check(name, value)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParameterError("min_tokens", f"{self.min_tokens} is more than max_tokens, {self.max_tokens}")

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise ParameterError("stop", f"has {len(self.stop)} strings; at most {MAX_STOP_STRINGS} are allowed")
        for text in self.stop:
            if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_STRING_CHARS:
                raise ParameterError("stop", f"each must be a string of 1 to {MAX_STOP_STRING_CHARS} characters")
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS // 2:
            count, cap = len(self.stop_token_ids), MAX_STOP_TOKEN_IDS // 2
            raise ParameterError("stop_token_ids", f"has {count} ids; at most {cap} are allowed")
        for token in self.stop_token_ids:
            _TOKEN_ID.check("stop_token_ids", token)

    def _check_bias(self) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            count = len(self.logit_bias)
            raise ParameterError("logit_bias", f"has {count} entries; at most {MAX_LOGIT_BIAS} are allowed")
        for token, bias in self.logit_bias.items():
            _TOKEN_ID.check("logit_bias", token)
            _BIAS.check("logit_bias", bias, of=f"{token}: ")

    def _check_token_rules(self) -> None:
        _check_ids("allowed_token_ids", self.allowed_token_ids)
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise ParameterError("bad_words", f"has {len(self.bad_words)} strings; at most {MAX_BAD_WORDS} are allowed")
        for word in self.bad_words:
            if not isinstance(word, str) or not word.strip() or len(word) > MAX_BAD_WORD_CHARS:
                message = f"each must be a string of 1 to {MAX_BAD_WORD_CHARS} characters, not of white space alone"
                raise ParameterError("bad_words", message)
        if len(self.bad_token_ids) > 2 * MAX_BAD_WORDS:
            count = len(self.bad_token_ids)
            raise ParameterError("bad_token_ids", f"has {count} sequences; at most {2 * MAX_BAD_WORDS} are allowed")
        for tokens in self.bad_token_ids:
            if not 1 <= len(tokens) <= MAX_BAD_TOKENS:
                raise ParameterError("bad_token_ids", f"each must have 1 to {MAX_BAD_TOKENS:,} token ids")
            _check_ids("bad_token_ids", tokens)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises ParameterError where a token id is not in the model's vocabulary."""
        if len(self.allowed_token_ids) > vocab_size:
            count = len(self.allowed_token_ids)
            raise ParameterError("allowed_token_ids", f"has {count} ids, and the vocabulary {vocab_size}")
        bad = [token for tokens in self.bad_token_ids for token in tokens]
        for name, ids in (
            ("stop_token_ids", self.stop_token_ids), ("logit_bias", self.logit_bias),
            ("allowed_token_ids", self.allowed_token_ids), ("bad_words" if self.bad_words else "bad_token_ids", bad),
        ):  # fmt: skip
            if ids and (token := max(ids)) >= vocab_size:
                raise ParameterError(name, f"token id {token} is not below the vocabulary's size, {vocab_size}")


def _check_ids(name: str, ids: Sequence[int]) -> None:
    """Check token ids that may be as many as a vocabulary, without a call for each."""
    if set(map(type, ids)) - {int}:
        raise ParameterError(name, "must be token ids: integers")
    if ids and (wrong := min(ids) if min(ids) < 0 else max(ids)) not in range(_INT32_MAX + 1):
        raise ParameterError(name, f"{wrong} is out of range; 0 to {_INT32_MAX} is allowed")


@cache
def parameters() -> Mapping[str, Parameter]:
    """The scalar parameters by name, in the order of SamplingParams: what HTTP, gRPC, flags and packing derive from."""
    fields = dataclasses.fields(SamplingParams)
    return {own.name: own.metadata[Parameter] for own in fields if Parameter in own.metadata}


@cache
def columns() -> Mapping[str, Column]:
    """Return the columns of the parameters that the device knows: an array each in slot state, and a section in the
    data that initialises slots."""
    return {name: column for name, own in parameters().items() if (column := own.column) is not None}


@cache
def generation_keys() -> Mapping[str, str]:
    """Return the parameters that a model's generation_config.json may declare, with their keys in it."""
    return {name: own.generation_key for name, own in parameters().items() if own.generation_key}
