"""RopeConfig: the rotary embedding of a layer."""

import math
from dataclasses import dataclass
from typing import Literal

from jaxinfer.errors import ModelError

MAX_CONTEXT = 2**27
"""Positions of a context, stretched by rope scaling or not."""

_POSITIVE = (
    "theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
)


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding.

    kind `default`: frequencies theta ** (-2 i / D) over the D channels of `dim`. `linear`: those divided by factor.
    `llama3`: divided by factor where the wavelength is above original_max_position_embeddings / low_freq_factor, kept
    where it is below original_max_position_embeddings / high_freq_factor, blended between (Llama 3.1). `yarn`: kept for
    pairs of channels that turn more than beta_fast times over the original context, divided by factor for those that
    turn less than beta_slow times, blended between by the number of the pair; truncate: the ends of that range are
    whole numbers. attention_factor: what cosines and sines are multiplied by. `dynamic`: theta grows with the position
    from original_max_position_embeddings on (NTK; layers/rope.py). `longrope`: each pair of channels is divided by a
    factor of its own, out of long_factor where `stretched`, else out of short_factor (LongRoPE;
    DecoderConfig.at_context).

    dim: channels of a head that turn, from the first; the others stay as they are. None: all of them.
    """

    kind: Literal["default", "linear", "llama3", "yarn", "dynamic", "longrope"] = "default"
    theta: float = 10000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    stretched: bool = False
    dim: int | None = None

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if not 0 < getattr(self, name) < math.inf:
                raise ModelError(f"config.json: rope {name} must be above 0, not {getattr(self, name)}")
        for name in ("short_factor", "long_factor"):
            if not all(0 < factor < math.inf for factor in getattr(self, name)):
                raise ModelError(f"config.json: rope {name} must hold numbers above 0")
        if self.factor > MAX_CONTEXT:
            raise ModelError(f"config.json: rope factor is {self.factor}; at most {MAX_CONTEXT} is supported")
        if self.kind in ("yarn", "dynamic") and self.factor < 1:
            raise ModelError(f"config.json: rope factor must be at least 1 for {self.kind}, not {self.factor}")
        if self.kind == "yarn" and self.theta <= 1:
            raise ModelError(f"config.json: rope_theta must be above 1 for yarn, not {self.theta}")
        if self.beta_fast < self.beta_slow:
            raise ModelError("config.json: rope beta_fast must be at least beta_slow")
        if self.kind == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            raise ModelError("config.json: rope high_freq_factor must be above low_freq_factor")

    def check_head(self, head_dim: int) -> None:
        """Raises ModelError where heads of `head_dim` channels cannot be turned so."""
        dim = self.turned(head_dim)
        if self.dim is None and head_dim % 2:
            raise ModelError(f"config.json: head_dim must be even for rotary embedding, not {head_dim}")
        if dim % 2 or not 0 < dim <= head_dim:
            raise ModelError(
                f"config.json: rotary embedding of {dim} channels: must be an even number up to head_dim, {head_dim}"
            )
        if self.kind == "dynamic" and dim < 4:
            raise ModelError(f"config.json: head_dim must be at least 4 for dynamic rope, not {dim}")
        if self.kind == "longrope":
            self._check_factors(dim // 2)

    def _check_factors(self, wanted: int) -> None:
        for name in ("short_factor", "long_factor"):
            found = len(getattr(self, name))
            if found != wanted:
                raise ModelError(f"config.json: rope {name} must have {wanted} numbers, head_dim / 2, not {found}")

    def turned(self, head_dim: int) -> int:
        """Channels that turn in heads of `head_dim`."""
        return head_dim if self.dim is None else self.dim
