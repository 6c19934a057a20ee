"""Rotary embedding as a config.json declares it, in either spelling."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.errors import quoted
from jaxinfer.model_config.rope_config import RopeConfig

_KINDS = {kind: kind for kind in ("default", "linear", "llama3", "yarn", "dynamic", "longrope")}
_KINDS["su"] = "longrope"  # as Phi-3's first files call it


class Rope(NamedTuple):
    """Rotary embedding, and the longest context that it is declared for."""

    config: RopeConfig
    context: int


def read_rope(
    config: ConfigReader,
    *,
    theta: float = RopeConfig.theta,
    head_dim: int | None = None,
    partial: float = 1.0,
    own: Sequence[str] = (),
) -> Rope:
    """From `rope_theta` and `rope_scaling`, or from the newer `rope_parameters`, which holds both.

    `original_max_position_embeddings` may stand outside of them, where Phi-3 has it.

    theta: the family's, of a file that does not say. head_dim: of a family whose heads may turn in part:
    `partial_rotary_factor`, by default `partial`, says how much of it. own: keys inside that the family reads itself.
    Raises ModelError where they contradict one another, or a key inside is unknown.
    """
    rope = _read_either(config, theta, own)
    factor = _partial(config, partial)
    if factor == 1:
        return rope
    if head_dim is None:
        raise config.error("partial_rotary_factor", f"{factor} is not supported; only 1.0 is")
    return rope._replace(config=replace(rope.config, dim=int(head_dim * factor)))


def read_typed_ropes(config: ConfigReader, thetas: Mapping[str, float]) -> dict[str, Rope]:
    """A rotary embedding for each type of layer, of which `thetas` holds the bases where the file does not say.

    From `rope_parameters` that hold an object for each type, or from `rope_theta` and `rope_scaling`, which older
    files mean for the types that are not `sliding_attention`.
    """
    declared = config.integer("max_position_embeddings")
    typed = config.mapping("rope_parameters")
    if typed is None:
        whole = _read_either(config, thetas.get("full_attention", RopeConfig.theta))
        return {
            kind: Rope(RopeConfig(theta=base), declared) if kind == "sliding_attention" else whole
            for kind, base in thetas.items()
        }
    found = {}
    for kind, theta in thetas.items():
        inner = typed.mapping(kind) or typed.inside({}, kind)
        inner.default("rope_theta", theta)
        found[kind] = _read_alone(inner, declared)
    typed.finish(frozenset())
    return found


def _partial(config: ConfigReader, default: float) -> float:
    for name in ("rope_parameters", "rope_scaling"):
        inner = config.mapping(name)
        if inner is not None:
            default = inner.number("partial_rotary_factor", default)
    return config.number("partial_rotary_factor", default)


def _read_either(config: ConfigReader, theta: float, own: Sequence[str] = ()) -> Rope:
    declared = config.integer("max_position_embeddings")
    config.integer("original_max_position_embeddings", declared)
    found = [
        _read(config, name, inner, declared, theta, own)
        for name in ("rope_parameters", "rope_scaling")
        if (inner := config.mapping(name)) is not None
    ]
    if len(found) == 2 and found[0] != found[1]:
        raise config.error("rope_scaling", "contradicts rope_parameters; keep one of them")
    theta = config.number("rope_theta", theta)
    return found[0] if found else Rope(RopeConfig(theta=theta), declared)


def _read(
    config: ConfigReader, name: str, inner: ConfigReader, declared: int, default: float, own: Sequence[str]
) -> Rope:
    # NOTE: files written by several versions hold the kind under both names.
    old_kind, kind = inner.get("type"), inner.get("rope_type")
    if old_kind is not None and kind is not None and old_kind != kind:
        raise inner.error("type", f"{quoted(old_kind)} contradicts rope_type, {quoted(kind)}")
    kind = inner.choice("rope_type" if kind is not None else "type", _KINDS, "default")
    for key in ("partial_rotary_factor", *own):
        inner.get(key)
    outer = config.number("rope_theta", inner.number("rope_theta", default))
    theta = inner.number("rope_theta", outer)
    if theta != outer:
        raise inner.error("rope_theta", f"{theta} contradicts rope_theta outside of {name}, {outer}")
    _take_original(config, inner, name)
    return _finished(kind, inner, theta, declared)


def _read_alone(inner: ConfigReader, declared: int) -> Rope:
    """Read parameters that no other key of the file refers to."""
    return _finished(inner.choice("rope_type", _KINDS, "default"), inner, inner.number("rope_theta"), declared)


def _finished(kind: str, inner: ConfigReader, theta: float, declared: int) -> Rope:
    rope = _READERS[kind](inner, theta, declared)
    inner.finish(_IGNORED[kind])
    return rope


def _take_original(config: ConfigReader, inner: ConfigReader, name: str) -> None:
    """Gives `inner` the original context where it stands outside only."""
    key = "original_max_position_embeddings"
    if key not in config:
        return
    outside = config.integer(key)
    if inner.integer(key, outside) != outside:
        raise inner.error(key, f"{quoted(inner.integer(key))} contradicts {key} outside of {name}, {quoted(outside)}")
    inner.default(key, outside)


def _default(inner: ConfigReader, theta: float, declared: int) -> Rope:
    return Rope(RopeConfig(theta=theta), declared)


def _linear(inner: ConfigReader, theta: float, declared: int) -> Rope:
    return Rope(RopeConfig("linear", theta, inner.number("factor")), declared)


def _llama3(inner: ConfigReader, theta: float, declared: int) -> Rope:
    rope = RopeConfig(
        "llama3",
        theta,
        inner.number("factor"),
        inner.number("low_freq_factor"),
        inner.number("high_freq_factor"),
        inner.integer("original_max_position_embeddings"),
    )
    return Rope(rope, declared)


def _dynamic(inner: ConfigReader, theta: float, declared: int) -> Rope:
    """The model was trained on `max_position_embeddings` tokens and is stretched from there on."""
    inner.only("original_max_position_embeddings", declared)
    factor = inner.number("factor")
    rope = RopeConfig("dynamic", theta, factor, original_max_position_embeddings=declared)
    return Rope(rope, max(declared, int(declared * factor)))


def _yarn(inner: ConfigReader, theta: float, declared: int) -> Rope:
    original = inner.integer("original_max_position_embeddings", declared)
    implied = {"default": declared / original} if original > 0 and original != declared else {}
    factor = inner.number("factor", **implied)
    inner.only("extrapolation_factor", 1)
    rope = RopeConfig(
        "yarn",
        theta,
        factor,
        original_max_position_embeddings=original,
        attention_factor=_yarn_scale(inner, factor),
        beta_fast=inner.number("beta_fast", RopeConfig.beta_fast),
        beta_slow=inner.number("beta_slow", RopeConfig.beta_slow),
        truncate=inner.flag("truncate", RopeConfig.truncate),
    )
    # Files of models that may be stretched declare what they were trained on, or what they can be stretched to.
    return Rope(rope, max(declared, int(original * factor)))


def _yarn_scale(inner: ConfigReader, factor: float) -> float:
    """The factor of cosines and sines. vLLM's `attn_factor` multiplies what follows from the other fields."""
    scales = (inner.number("mscale", 0.0), inner.number("mscale_all_dim", 0.0))
    scale = _yarn_attention(factor, *scales) if inner.flag("apply_yarn_scaling", True) else 1.0
    more = inner.number("attn_factor", 1.0)
    if "attention_factor" in inner and more != 1:
        raise inner.error("attn_factor", "is there beside attention_factor; keep one of them")
    return inner.number("attention_factor", scale * more)


def _longrope(inner: ConfigReader, theta: float, declared: int) -> Rope:
    """The context is the declared one: `factor` says only what cosines and sines are multiplied by."""
    original = inner.integer("original_max_position_embeddings", declared)
    if original < 2:
        raise inner.error("original_max_position_embeddings", f"must be at least 2, not {quoted(original)}")
    factor = inner.number("factor", declared / original)
    rope = RopeConfig(
        "longrope",
        theta,
        factor,
        original_max_position_embeddings=original,
        attention_factor=inner.number("attention_factor", _longrope_attention(factor, original)),
        short_factor=inner.numbers("short_factor"),
        long_factor=inner.numbers("long_factor"),
        stretched=declared > original,
    )
    return Rope(rope, declared)


def _longrope_attention(factor: float, original: int) -> float:
    """Return the default factor of cosines and sines, after LongRoPE's paper."""
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def _yarn_attention(factor: float, mscale: float, mscale_all_dim: float) -> float:
    """Return the default factor of cosines and sines, after YaRN's paper and DeepSeek's code."""

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    return scale(mscale) / scale(mscale_all_dim) if mscale and mscale_all_dim else scale(1.0)


_READERS: dict[str, Callable[[ConfigReader, float, int], Rope]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "dynamic": _dynamic,
    "longrope": _longrope,
}
# Keys that files carry beside those that their kind reads.
_OF_TRAINING = frozenset({"finetuned"})
_IGNORED: dict[str, frozenset[str]] = {
    **dict.fromkeys(_READERS, _OF_TRAINING),
    "default": _OF_TRAINING | {"factor", "original_max_position_embeddings"},
    "linear": _OF_TRAINING | {"original_max_position_embeddings"},
}
