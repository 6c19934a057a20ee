"""What a request asks of the sampler. Validated once, here, at the edge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxinfer.errors import ParameterError

# The one table of caps. Slot state on the device has arrays of these widths, so that a client
# cannot ask for more than was allocated at start.
MAX_N = 128
MAX_STOP_TOKEN_IDS = 64  # end-of-sequence ids included
MAX_LOGIT_BIAS = 300  # OpenAI's own bound
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_LOGPROBS = 20

_INT32_MAX = 2**31 - 1
_SEED_MAX = 2**63 - 1


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn and when to stop. Names and meaning are vLLM's.

    n: choices to generate for one prompt, 1..128.
    max_tokens: most tokens to generate a choice; None: up to the end of the context.
    min_tokens: end-of-sequence and stop ids are banned before this many tokens.
    temperature: 0 is greedy; at most 100.
    top_p: in (0, 1]. top_k: 0 or -1 is off. min_p: in [0, 1].
    seed: None draws one. The random number of a token depends on seed, choice and position alone. Its probabilities are
    rounded as the shapes of their step have it, which other requests and the prefix cache change: in float32 by
    so little that a request gives the same tokens whatever runs beside it, but for a draw within about 1e-5 of a
    boundary between tokens; in bfloat16 and float16 some requests take another token at such a draw.
    presence_penalty, frequency_penalty: in [-2, 2], over generated tokens.
    repetition_penalty: in (0, 10], over prompt and generated tokens; 1 is off.
    logit_bias: token id -> bias in [-100, 100], at most 300 entries.
    logprobs: how many of the most likely tokens to report, 0..20; 0 reports the sampled one only, -1 is 20.
    prompt_logprobs: the same for each token of the prompt.
    stop: strings that end the text. stop_token_ids: ids that end it.
    """

    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        object.__setattr__(self, "logit_bias", dict(self.logit_bias or {}))
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) == -1:
                object.__setattr__(self, name, MAX_LOGPROBS)
        object.__setattr__(self, "top_k", max(self.top_k, 0) if self.top_k == -1 else self.top_k)
        self._check_counts()
        self._check_numbers()
        self._check_stops()
        self._check_bias()

    @property
    def greedy(self) -> bool:
        """True where the most likely token is taken."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def uses_counts(self) -> bool:
        """True where a penalty needs to know which tokens were seen."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    def _check_counts(self) -> None:
        _integer("n", self.n, 1, MAX_N)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, _INT32_MAX)
        _integer("min_tokens", self.min_tokens, 0, _INT32_MAX)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParameterError("min_tokens", f"{self.min_tokens} is more than max_tokens, {self.max_tokens}")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _integer(name, value, 0, MAX_LOGPROBS)
        if self.seed is not None:
            _integer("seed", self.seed, -_SEED_MAX - 1, _SEED_MAX)

    def _check_numbers(self) -> None:
        _number("temperature", self.temperature, 0.0, 100.0)
        _number("top_p", self.top_p, 0.0, 1.0, above_low=True)
        _integer("top_k", self.top_k, 0, _INT32_MAX)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, 10.0, above_low=True)

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
            _integer("stop_token_ids", token, 0, _INT32_MAX)

    def _check_bias(self) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            count = len(self.logit_bias)
            raise ParameterError("logit_bias", f"has {count} entries; at most {MAX_LOGIT_BIAS} are allowed")
        for token, bias in self.logit_bias.items():
            _integer("logit_bias", token, 0, _INT32_MAX)
            _number("logit_bias", bias, -100.0, 100.0, of=f"{token}: ")

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises ParameterError where a token id is not in the model's vocabulary."""
        for name, ids in (("stop_token_ids", self.stop_token_ids), ("logit_bias", self.logit_bias)):
            for token in ids:
                if token >= vocab_size:
                    raise ParameterError(name, f"token id {token} is not below the vocabulary's size, {vocab_size}")


def _integer(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParameterError(name, f"must be an integer, not {type(value).__name__}")
    if not low <= value <= high:
        raise ParameterError(name, f"{value} is out of range; {low} to {high} is allowed")


def _number(name: str, value: Any, low: float, high: float, *, above_low: bool = False, of: str = "") -> None:
    """of: which of several values, for errors."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ParameterError(name, f"{of}must be a number, not {type(value).__name__}")
    # What is not a number fails the comparison, too; `isfinite` would fail on a huge integer.
    if not low <= value <= high or (above_low and value == low):
        bound = f"above {low} and at most {high}" if above_low else f"{low} to {high}"
        raise ParameterError(name, f"{of}{value} is out of range; {bound} is allowed")
