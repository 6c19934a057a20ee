"""DecoderConfig: what one decoder-only model declares. Nothing here imports jax."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from jaxinfer.errors import ModelError, quoted

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]

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

    kind `default`: frequencies theta ** (-2 i / head_dim). `linear`: those divided by factor. `llama3`: divided by
    factor where the wavelength is above original_max_position_embeddings / low_freq_factor, kept where it is below
    original_max_position_embeddings / high_freq_factor, blended between (Llama 3.1). `yarn`: kept for pairs of channels
    that turn more than beta_fast times over the original context, divided by factor for those that turn less than
    beta_slow times, blended between by the number of the pair; truncate: the ends of that range are whole numbers.
    attention_factor: what cosines and sines are multiplied by. `dynamic`: theta grows with the position from
    original_max_position_embeddings on (NTK; layers/rope.py). `longrope`: each pair of channels is divided by a factor
    of its own, out of long_factor where `stretched`, else out of short_factor (LongRoPE; DecoderConfig.at_context).
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


class LayerGroup(NamedTuple):
    """Layers that share a pool of KV blocks: those with one window (None: all tokens before)."""

    window: int | None
    layers: tuple[int, ...]


class GroupPlace(NamedTuple):
    """Where a layer's KV lies: index of its group, and its index in the group."""

    group: int
    index: int


@dataclass(frozen=True)
class DecoderConfig:
    """One decoder: sizes in elements, and the differences between families.

    max_position_embeddings: the longest context, stretched by rope scaling where the file declares the one before.
    head_dim need not be hidden_size / num_heads. windows: for each layer how many tokens a token sees, itself
    included; None: all before it. eos_token_ids holds every id that ends a text.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    windows: tuple[int | None, ...]
    rms_norm_eps: float = 1e-6
    activation: Activation = "silu"
    rope: RopeConfig = RopeConfig()
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    bos_token_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in _SIZES:
            if getattr(self, name) < 1:
                raise ModelError(f"config.json: {name} must be at least 1, not {quoted(getattr(self, name))}")
        if self.max_position_embeddings > MAX_CONTEXT:
            found = quoted(self.max_position_embeddings)
            raise ModelError(f"config.json: declares a context of {found} tokens; at most {MAX_CONTEXT} are supported")
        if self.num_heads % self.num_kv_heads:
            counts = f"{self.num_heads} attention heads, {self.num_kv_heads} key-value heads"
            raise ModelError(
                f"config.json: num_attention_heads must be a multiple of num_key_value_heads; got {counts}"
            )
        if self.head_dim % 2:
            raise ModelError(f"config.json: head_dim must be even for rotary embedding, not {self.head_dim}")
        if self.rope.kind == "dynamic" and self.head_dim < 4:
            raise ModelError(f"config.json: head_dim must be at least 4 for dynamic rope, not {self.head_dim}")
        if self.rope.kind == "longrope":
            self._check_longrope()
        if len(self.windows) != self.num_layers:
            raise ModelError(f"config.json: {len(self.windows)} layer windows for {self.num_layers} layers")
        if any(window is not None and window < 1 for window in self.windows):
            raise ModelError("config.json: sliding_window must be at least 1")
        if not self.rms_norm_eps > 0:
            raise ModelError(f"config.json: rms_norm_eps must be above 0, not {self.rms_norm_eps}")

    def _check_longrope(self) -> None:
        for name in ("short_factor", "long_factor"):
            found, wanted = len(getattr(self.rope, name)), self.head_dim // 2
            if found != wanted:
                raise ModelError(f"config.json: rope {name} must have {wanted} numbers, head_dim / 2, not {found}")

    def at_context(self, length: int) -> "DecoderConfig":
        """The decoder for sequences of at most `length` tokens; differs for `longrope` only.

        Its factors are the long ones for every token where sequences may be longer than the original context, as in
        vLLM. transformers chooses anew for each forward, by its longest sequence.
        """
        stretched = self.rope.kind == "longrope" and length > self.rope.original_max_position_embeddings
        return replace(self, rope=replace(self.rope, stretched=stretched))

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def kv_groups(self) -> tuple[LayerGroup, ...]:
        """Layers by window, in the order in which the windows first occur."""
        return tuple(LayerGroup(w, _where(self.windows, w)) for w in dict.fromkeys(self.windows))

    @property
    def group_places(self) -> tuple[GroupPlace, ...]:
        """For each layer its place in `kv_groups`."""
        places = {
            layer: GroupPlace(group, index)
            for group, (_, layers) in enumerate(self.kv_groups)
            for index, layer in enumerate(layers)
        }
        return tuple(places[layer] for layer in range(self.num_layers))

    @property
    def attention_scale(self) -> float:
        """What query-key products are multiplied by."""
        return self.head_dim**-0.5


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "max_position_embeddings",
)


def _where(windows: Sequence[int | None], window: int | None) -> tuple[int, ...]:
    return tuple(layer for layer, other in enumerate(windows) if other == window)
