"""`quant_method` compressed-tensors: groups of modules, each with a form of its own (llm-compressor's checkpoints)."""

from typing import Any

from jaxinfer.checkpoint.formats.declared import Declared, Group
from jaxinfer.checkpoint.formats.format import TensorFormat
from jaxinfer.checkpoint.formats.fp8 import Fp8
from jaxinfer.checkpoint.formats.integers import Integers
from jaxinfer.checkpoint.formats.modules import Modules, checked_pattern
from jaxinfer.checkpoint.formats.mxfp4 import Mxfp4
from jaxinfer.checkpoint.formats.nvfp4 import Nvfp4
from jaxinfer.checkpoint.formats.settings.kv_codes import read_kv_codes
from jaxinfer.checkpoint.formats.settings.sizes import checked_size, read_block
from jaxinfer.checkpoint.formats.settings.unused import KV_SCALES
from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.errors import quoted

_EVERY_MATRIX = "Linear"
_REGULAR = "re:"
_UNUSED = (
    ".weight_shape",
    ".input_scale",
    ".input_zero_point",
    ".input_global_scale",
    ".output_scale",
    ".output_zero_point",
    *KV_SCALES,
)
_OF_A_SEARCH = ("observer", "observer_kwargs", "scale_dtype", "zp_dtype")
"""Keys about the search for scales, and the types of scales and zeros, which their tensors have themselves."""
_MIXED = "mixed-precision"


def read(config: ConfigReader) -> Declared:
    """Its groups. Activations are rounded where the file asks for int8 with a scale a token, and stay otherwise."""
    for name in ("version", "global_compression_ratio", "run_compressed"):
        config.get(name)
    config.only("quantization_status", "compressed", "frozen")
    config.only("transform_config", {})
    _refuse_sparse(config)
    groups = config.mapping("config_groups")
    if groups is None:
        raise config.error("config_groups", "is missing")
    whole = config.get("format", _MIXED)
    found = [_group(of, whole) for name in groups.names if (of := groups.mapping(name)) is not None]
    kept = tuple(group for group in found if group is not None)
    zeros = any(isinstance(group.format, Integers) and group.format.zeros for group in kept)
    unused = _UNUSED if zeros else (*_UNUSED, ".weight_zero_point")
    ignored = _modules(config, "ignore")
    codes = read_kv_codes(config)
    return Declared("compressed-tensors", kept, ignored, head=True, routers=True, unused=unused, kv_codes=codes)


def _refuse_sparse(config: ConfigReader) -> None:
    sparsity = config.get("sparsity_config", {})
    if sparsity and not (isinstance(sparsity, dict) and sparsity.get("format") == "dense"):
        raise config.error("sparsity_config", "is set; sparse weights are not supported")


def _group(group: ConfigReader, whole: object) -> Group | None:
    """None for a group whose weights are not quantised."""
    weights, inputs = group.mapping("weights"), group.get("input_activations")
    group.get("output_activations")  # of keys and values: `kv_cache_scheme` says how these may be kept
    form = group.get("format", whole)
    targets = group.texts("targets")
    every = _EVERY_MATRIX in targets
    named = _modules(group, "targets", left_out=(_EVERY_MATRIX,))
    group.finish(frozenset())
    if weights is None:
        return None
    found = Group(_format(group, form, weights, inputs), named, every)
    weights.finish(frozenset())
    return found


def _modules(config: ConfigReader, key: str, left_out: tuple[str, ...] = ()) -> Modules:
    """Names of modules, and regular expressions. A class of modules has no dot in its name, but for the head's."""
    texts = [text for text in config.texts(key) if text not in left_out]
    patterns = [text.removeprefix(_REGULAR) for text in texts if text.startswith(_REGULAR)]
    names = [text for text in texts if not text.startswith(_REGULAR)]
    for name in names:
        if "." not in name and name != name.lower():
            raise config.error(key, f"{quoted(name)} is not supported; {_EVERY_MATRIX}, names and re: are")
    where = f"{config.where}: {key}"
    return Modules(names=tuple(names), patterns=tuple(checked_pattern(pattern, where) for pattern in patterns))


def _format(group: ConfigReader, form: object, weights: ConfigReader, inputs: Any) -> TensorFormat:
    for name in _OF_A_SEARCH:
        weights.get(name)
    weights.only("dynamic", False)
    kind = weights.choice("type", {"int": "int", "float": "float"}, "int")
    bits, strategy = weights.integer("num_bits", 8), _strategy(weights)
    if kind == "float" and bits == 8 and form in ("float-quantized", "naive-quantized"):
        return Fp8(_block(weights, strategy), "weight_scale")
    if kind == "int" and bits in (4, 8) and form in ("pack-quantized", "int-quantized", "naive-quantized"):
        return _integers(weights, bits, form == "pack-quantized", strategy, inputs)
    if kind == "float" and bits == 4 and form in ("nvfp4-pack-quantized", "mxfp4-pack-quantized"):
        return _four_bits(weights, strategy, nvidia=form == "nvfp4-pack-quantized")
    raise group.error("format", f"{quoted(form)} of weights in {kind}{quoted(bits)} is not supported")


def _four_bits(weights: ConfigReader, strategy: str, nvidia: bool) -> TensorFormat:
    weights.only("symmetric", True)
    weights.only("actorder", False, "weight", "static")
    wanted, size = ("tensor_group", 16) if nvidia else ("group", 32)
    if strategy != wanted:
        raise weights.error("strategy", f"{strategy} is not supported; {wanted} is")
    weights.only("group_size", size)
    return Nvfp4(compressed=True) if nvidia else Mxfp4(experts=False)


def _strategy(weights: ConfigReader) -> str:
    """Return the strategy: the values that share a scale."""
    names = ("tensor", "channel", "group", "block", "tensor_group")
    size = weights.integer("group_size", -1)
    return weights.choice("strategy", {name: name for name in names}, "group" if size > 0 else "tensor")


def _block(weights: ConfigReader, strategy: str) -> tuple[int, int] | None:
    weights.only("symmetric", True)
    weights.only("actorder", False, "weight", "static")
    if strategy in ("tensor", "channel"):
        return None
    if strategy != "block":
        raise weights.error("strategy", f"{strategy} of fp8 is not supported; tensor, channel and block are")
    return read_block(weights, "block_structure")


def _integers(weights: ConfigReader, bits: int, packed: bool, strategy: str, inputs: Any) -> Integers:
    if strategy not in ("tensor", "channel", "group"):
        raise weights.error("strategy", f"{strategy} of integers is not supported; tensor, channel and group are")
    size = weights.integer("group_size", -1)
    group = checked_size(weights, "group_size", size) if strategy == "group" else None
    symmetric, order = weights.flag("symmetric", True), weights.get("actorder", False)
    if order not in (False, True, "group", "dynamic", "weight", "static"):
        raise weights.error("actorder", f"{quoted(order)} is not supported; group and weight are")
    rounded = not packed and bits == 8 and symmetric and strategy != "group" and _a_scale_a_token(inputs)
    return Integers(
        4 if bits == 4 else 8,
        packed,
        group,
        not symmetric,
        "int8" if rounded else "none",
        act_order=order in (True, "group", "dynamic"),
    )


def _a_scale_a_token(inputs: Any) -> bool:
    """Return whether activations are to be rounded to int8 as `Scheme` does it, with a scale a token."""
    wanted = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
    return isinstance(inputs, dict) and inputs.get("symmetric", True) is True and wanted.items() <= inputs.items()
