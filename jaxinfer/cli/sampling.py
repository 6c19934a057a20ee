"""Sampling parameters as flags, for the commands that generate in the terminal."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from jaxinfer.errors import ParameterError
from jaxinfer.sampling import SamplingParams, parameters
from jaxinfer.text.defaults import GenerationDefaults


def _flags() -> type:
    """Flags of the scalar parameters. What is true or false has its default; the others are None where not given."""
    fields: list[tuple[str, Any, Any]] = []
    for name, parameter in parameters().items():
        if parameter.kind is bool:
            fields.append((name, Annotated[bool, tyro.conf.arg(help=parameter.flag)], parameter.default))
        elif parameter.flag:
            # The engine's flag of this name sets the seed, see `with_seed`.
            hidden = (tyro.conf.Suppress,) if name == "seed" else ()
            kind = Annotated[parameter.kind | None, tyro.conf.arg(help=parameter.flag), *hidden]
            fields.append((name, kind, None))
    return dataclasses.make_dataclass("ScalarFlags", fields, frozen=True)


@dataclass(frozen=True)
class SamplingFlags(_flags()):
    """Sampling parameters and stop conditions. Those without a flag come from the model's generation_config.json."""

    logit_bias: tuple[str, ...] = ()
    """Token ids and what is added to their logits, as in `5=-100 7=2.5`."""
    stop: tuple[str, ...] = ()
    """Strings that end the text."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end it."""
    allowed_token_ids: tuple[int, ...] = ()
    """The only token ids that may be drawn; by default all."""
    bad_words: tuple[str, ...] = ()
    """Strings that the text does not get."""

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
