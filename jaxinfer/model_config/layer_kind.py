"""LayerKind: what one layer of a decoder computes. Weights, shapes, costs and checks follow from it."""

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from jaxinfer.errors import ModelError, ParameterError, quoted
from jaxinfer.model_config.formulas import check_formula
from jaxinfer.model_config.formulas.norms import NORMS
from jaxinfer.model_config.head_spread import HeadSpread, as_they_are, spread_heads
from jaxinfer.model_config.mlp_kind import ExpertsKind, MlpKind
from jaxinfer.model_config.rope_config import RopeConfig
from jaxinfer.quantization.kv import SCALED, KVCodes
from jaxinfer.quantization.scheme import LayerSchemes


@dataclass(frozen=True)
class NormKind:
    """A norm over the last axis.

    form: one of NORMS. offset: added to the weight (Gemma's 1 + w). bias: one is added at the end. wide: multiplied
    with the weight in float32, not in the type of what is normed, as the family's own code does; some forms always are.
    Only wide norms have an offset or a bias.
    """

    form: str = "rms"
    eps: float = 1e-6
    offset: float = 0.0
    bias: bool = False
    wide: bool = False

    def __post_init__(self) -> None:
        check_formula(NORMS, self.form)
        if not self.eps > 0:
            raise ModelError(f"config.json: {NORMS[self.form].eps} must be above 0, not {self.eps}")
        if (self.offset or self.bias) and not (self.wide or NORMS[self.form].wide):
            raise ValueError("an offset or a bias is added in float32: the norm must be wide")


class KVKind(NamedTuple):
    """Keys and values that a layer keeps of tokens: KV heads, and the sizes of a key and a value of one head.

    codes: type of both; None: the type of activations. window: the last tokens of which they are needed; None: all.
    """

    heads: int
    key_dim: int
    value_dim: int
    codes: KVCodes | None = None
    window: int | None = None

    @property
    def scaled(self) -> bool:
        """Keys and values are divided by scales of their layer before they are kept."""
        return self.codes in SCALED


@dataclass(frozen=True)
class Temperature:
    """Queries grow with their position: times 1 + beta * log(1 + floor(position / original)) (Llama 4, Ministral 3)."""

    beta: float
    original: int


@dataclass(frozen=True)
class AttentionKind:
    """Attention of one layer.

    head_dim: channels of a query, key or value of one head; need not be hidden_size / num_heads. window: tokens that a
    token sees, itself included; None: all before it. rope: None where a layer knows no positions. scale: what query-key
    products are multiplied by; None: head_dim ** -0.5. soft_cap: scores become cap * tanh(score / cap). sinks: each
    head has a score that takes part in the softmax and adds nothing. qk_norm: of q and k, before they are turned;
    qk_norm_over `head`: over each head, one weight for all; `heads`: over each head, with a weight of its own;
    `projection`: over all heads at once. kv_codes: of KVKind. spread: where num_heads and num_kv_heads are not the
    checkpoint's (`over`), how they are made of those.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    rope: RopeConfig | None = field(default_factory=RopeConfig)
    scale: float | None = None
    soft_cap: float | None = None
    sinks: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: NormKind | None = None
    qk_norm_over: Literal["head", "heads", "projection"] = "head"
    temperature: Temperature | None = None
    kv_codes: KVCodes | None = None
    spread: HeadSpread | None = None

    def __post_init__(self) -> None:
        for name in ("num_heads", "num_kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ModelError(f"config.json: {name} must be at least 1, not {quoted(getattr(self, name))}")
        if self.num_heads % self.num_kv_heads:
            counts = f"{self.num_heads} attention heads, {self.num_kv_heads} key-value heads"
            raise ModelError(
                f"config.json: num_attention_heads must be a multiple of num_key_value_heads; got {counts}"
            )
        if self.window is not None and self.window < 1:
            raise ModelError("config.json: sliding_window must be at least 1")
        if self.rope is not None:
            self.rope.check_head(self.head_dim)
        for name in ("scale", "soft_cap"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ModelError(f"config.json: the attention's {name} must be above 0, not {value}")

    def over(self, shards: int) -> "AttentionKind":
        """Return the attention with heads that divide over `shards` devices: KV heads are copied if there are more
        shards, query heads of zeros are added if they do not divide. Raises ParameterError if neither is possible.
        """
        assert self.spread is None
        spread = spread_heads(self.num_heads, self.num_kv_heads, shards)
        if spread is None:
            return self
        if spread.padded and self.qk_norm is not None and self.qk_norm_over == "projection":
            raise ParameterError(
                "mesh",
                f"{self.num_heads} query heads that are normed together cannot be split over {shards} devices: heads "
                "of zeros would change their norm",
            )
        return replace(self, num_heads=spread.num_heads, num_kv_heads=spread.num_kv_heads, spread=spread)

    @property
    def places(self) -> HeadSpread:
        """Places of the checkpoint's heads."""
        return self.spread or as_they_are(self.num_heads, self.num_kv_heads)

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def kv(self) -> KVKind:
        """Keys and values that are kept of tokens."""
        return KVKind(self.num_kv_heads, self.head_dim, self.head_dim, self.kv_codes, self.window)

    @property
    def rotary(self) -> tuple[RopeConfig, int] | None:
        """The rotary embedding and the channels of a head; None: queries and keys do not turn."""
        return None if self.rope is None else (self.rope, self.head_dim)

    def depths(self, hidden: int) -> dict[str, int]:
        """The inputs of each matrix, by the names of LayerSchemes."""
        return {"qkv": hidden, "out": self.num_heads * self.head_dim}

    @property
    def scoring(self) -> "Scoring":
        """Options by which scores are computed, except the window."""
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        return Scoring(scale, self.soft_cap, self.sinks)


class Scoring(NamedTuple):
    """Options by which query-key products become scores: scale, soft cap, and whether heads have sinks
    (AttentionKind)."""

    scale: float
    soft_cap: float | None = None
    sinks: bool = False


MixerKind = AttentionKind
"""Kinds of what mixes tokens in a layer; others join as a union."""


@dataclass(frozen=True)
class LayerKind:
    """One layer: what mixes tokens, then an MLP, each added to what came in.

    norms `before`: of what goes into either. `after`: of what comes out. `both`. parallel: the MLP takes what the mixer
    takes, normed once. residual_scale: what either adds is multiplied by. schemes: how its matrices are held.
    """

    mixer: MixerKind
    mlp: MlpKind | ExpertsKind
    norm: NormKind = NormKind()
    norms: Literal["before", "after", "both"] = "before"
    parallel: bool = False
    residual_scale: float = 1.0
    schemes: LayerSchemes = field(default_factory=LayerSchemes)

    def __post_init__(self) -> None:
        if self.parallel and self.norms != "before":
            raise ModelError("config.json: layers whose parts run side by side have one norm, before them")

    @property
    def experts(self) -> ExpertsKind | None:
        """Its experts; None for a layer without."""
        return self.mlp if isinstance(self.mlp, ExpertsKind) else None

    def depths(self, hidden: int) -> dict[str, int]:
        """The inputs of each matrix that may be quantised, by the names of LayerSchemes."""
        return self.mixer.depths(hidden) | self.mlp.depths(hidden)
