"""Sampling parameters as flags, for the commands that generate in the terminal."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from jaxinfer.errors import ParameterError
from jaxinfer.sampling import SamplingParams
from jaxinfer.text.defaults import GenerationDefaults


@dataclass(frozen=True)
class SamplingFlags:
    """How tokens are drawn and when to stop. What is not given comes from the model's generation_config.json."""

    max_tokens: int | None = None
    """Most tokens to generate; by default 128 in `generate`, and up to the end of the context in `chat`."""
    min_tokens: int | None = None
    """Nothing ends the text before this many tokens."""
    temperature: float | None = None
    """0 is greedy."""
    top_p: float | None = None
    """Smallest set of tokens with this much probability."""
    top_k: int | None = None
    """Only the k likeliest tokens; 0 is off."""
    min_p: float | None = None
    """Only tokens with this share of the likeliest one's probability."""
    seed: Annotated[int | None, tyro.conf.Suppress] = None
    """The same seed gives the same text. The engine's flag of this name sets it, see `with_seed`."""
    presence_penalty: float | None = None
    """Above 0 makes tokens that were generated less likely."""
    frequency_penalty: float | None = None
    """The same, for each time that they were."""
    repetition_penalty: float | None = None
    """Above 1 makes tokens of prompt and text less likely."""
    logit_bias: tuple[str, ...] = ()
    """Token ids and what is added to their logits, as in `5=-100 7=2.5`."""
    stop: tuple[str, ...] = ()
    """Strings that end the text."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end it."""
    include_stop_str_in_output: bool = False
    """Show the stop string, too."""
    ignore_eos: bool = False
    """Go on after the end-of-sequence token."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""

    def params(self, defaults: GenerationDefaults, *, default_max_tokens: int | None, **more: Any) -> SamplingParams:
        """Sampling parameters, with what the model declares where a flag is silent. Raises ParameterError."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        given["logit_bias"] = dict(map(_bias, self.logit_bias))
        return defaults.params(default_max_tokens=default_max_tokens, **given, **more)


def with_seed(flags: SamplingFlags, seed: int | None) -> SamplingFlags:
    """The flags with the engine's seed, a file's included, so that it draws what a request with this seed draws."""
    return dataclasses.replace(flags, seed=seed)


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise ParameterError("logit_bias", f"{text!r} is not of the form ID=BIAS, as in 5=-100") from None
