"""The key of a folder of leaves: everything that they depend on, so that a folder that does not fit is refused.

Leaves are in a canonical form: those of one device, a leaf a layer's matrix, with the checkpoint's own heads and rows.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from jaxinfer.checkpoint.leaves import KEY
from jaxinfer.errors import ModelError, quoted
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import LayerKind
from jaxinfer.model_config.tensor_names import Root
from jaxinfer.models.plan import plan_model
from jaxinfer.models.weight import Weight
from jaxinfer.quantization.scheme import CODE_BITS, SCALE_BITS, LayerSchemes, Scheme, TableSchemes

FORMAT = 2
"""Changes with what is in the folder, and with how values lie in leaves."""
FORMS = {
    "qkv": "[KV heads, query heads of each + key + value, channels, hidden]",
    "gate_up": "[channels / block, gate and up, block, hidden]",
    "scales": "[rows, groups]",
    "rope": "channels that turn together are half of those that turn apart",
    "int4": "int8",
    "e2m1": "float8_e4m3fn",
}
"""Forms of weights in leaves: how their parts are fused, and the types that short codes are kept in."""
KV_SCALES = "kv_scales"
"""The leaf with the checkpoint's scales of keys and values, [layers, 2] float32."""
_DTYPES = ("float32", "bfloat16", "float16")
_TOLD = 8


def leaf_key(config: DecoderConfig, dtype: jnp.dtype, quantization: str) -> dict[str, Any]:
    """The key of the leaves of a decoder, which is over no mesh. quantization: how the schemes came about."""
    root, leaves = config.names.roots[0], leaf_forms(config, dtype).items()
    return {
        "format": FORMAT,
        "dtype": jnp.dtype(dtype).name,
        "quantization": quantization,
        "forms": FORMS,
        "config": _config(config),
        "names": {"body": root.body, "head": root.head},
        "layers": [_layer(config, kind) for kind in config.layers],
        "tables": _schemes(config.tables),
        "leaves": {name: {"shape": list(shape), "dtype": of} for name, (shape, of) in leaves},
    }


def held_config(config: DecoderConfig, key: Mapping[str, Any]) -> DecoderConfig:
    """The decoder as a folder with this key holds it: its schemes, and whether its head is the embedding. Raises
    ModelError for a key of another format, or one that is no key."""
    if key.get("format") != FORMAT:
        raise ModelError(f"{KEY}: format is {quoted(key.get('format'))}; {FORMAT} can be read: convert the model again")
    try:
        tied, kv_scales = bool(key["config"]["tie_word_embeddings"]), key["config"]["kv_scales"]
        schemes = [LayerSchemes(**_read_schemes(layer["schemes"])) for layer in key["layers"]]
        tables = TableSchemes(**_read_schemes(key["tables"]))
        root, held = Root(str(key["names"]["body"]), str(key["names"]["head"])), str(key["quantization"])
        dtype = {name: name for name in _DTYPES}[key["dtype"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{KEY}: is not the key of a folder of leaves: {quoted(error)}") from error
    if len(schemes) != config.num_layers:
        raise ModelError(f"{KEY}: has {len(schemes)} layers; config.json declares {config.num_layers}")
    layers = tuple(replace(kind, schemes=of) for kind, of in zip(config.layers, schemes, strict=True))
    names = replace(config.names, roots=(root,))
    return replace(
        config,
        **{"layers": layers, "tables": tables, "names": names, "tie_word_embeddings": tied},
        **{"held": held, "held_dtype": dtype, "held_kv_scales": kv_scales},
    )


def check_key(folder: Path, config: DecoderConfig, dtype: jnp.dtype, key: Mapping[str, Any]) -> None:
    """Raises ModelError, which names every field that differs, where a folder with this key does not hold the leaves of
    a decoder in `dtype`."""
    wanted = json.loads(json.dumps(leaf_key(config, dtype, str(config.held))))
    if found := list(differences(key, wanted)):
        more = f", and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
        raise ModelError(f"{folder / KEY}: does not fit: {'; '.join(found[:_TOLD])}{more}; convert the model again")


def differences(found: Any, wanted: Any, field: str = "") -> Iterator[str]:
    """Each field in which two values of JSON differ."""
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for name in dict.fromkeys((*wanted, *found)):
            yield from differences(found.get(name, "absent"), wanted.get(name, "absent"), f"{field}.{name}".lstrip("."))
    elif isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted) and _are_objects(wanted):
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            yield from differences(one, other, f"{field}[{number}]")
    elif found != wanted:
        yield f"{field} is {quoted(found)} there and {quoted(wanted)} here"


def leaf_forms(config: DecoderConfig, dtype: jnp.dtype) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of each leaf of a folder."""
    plan = plan_model(config, jnp.dtype(dtype))
    forms = {
        name: (leaf.shape, leaf.dtype.name)
        for one in (*plan.weights, *plan.head)
        if one.path[-1] != "kv_scale"
        for name, leaf in zip(leaf_names(one), one.leaves("bytes"), strict=True)
    }
    return forms if config.held_kv_scales is None else {**forms, KV_SCALES: ((config.num_layers, 2), "float32")}


def leaf_names(weight: Weight) -> tuple[str, ...]:
    """Return the names of a weight's arrays in a folder, where a mixer is called `attention`."""
    name = ".".join(map(str, weight.path)).replace(".mixer.", ".attention.")
    return (name,) if weight.scheme is None else tuple(f"{name}.{part}" for part in weight.scheme.parts)


def _config(config: DecoderConfig) -> dict[str, Any]:
    fields = ("vocab_size", "hidden_size", "tie_word_embeddings", "head_bias", "learned_positions")
    return {**{name: getattr(config, name) for name in fields}, "kv_scales": config.held_kv_scales}


def _layer(config: DecoderConfig, kind: LayerKind) -> dict[str, Any]:
    """Return all that a layer's leaves depend on besides their shapes."""
    attention, turned = kind.mixer, None
    if config.names.interleaved_rope and attention.rope is not None:
        turned = attention.rope.turned(attention.head_dim)
    heads = {"heads": attention.num_heads, "kv_heads": attention.num_kv_heads, "head_dim": attention.head_dim}
    return {**heads, "sorted_channels": turned, "schemes": _schemes(kind.schemes)}


def _schemes(schemes: LayerSchemes | TableSchemes) -> dict[str, Any]:
    return {name: dataclasses.asdict(of) for name, of in schemes._asdict().items() if of is not None}


def _read_schemes(found: Mapping[str, Any]) -> dict[str, Scheme]:
    schemes = {str(name): Scheme(**fields) for name, fields in found.items()}
    if unknown := [of for of in schemes.values() if of.codes not in CODE_BITS or of.scales not in SCALE_BITS]:
        raise ValueError(f"codes {unknown[0].codes}, scales {unknown[0].scales}")
    return schemes


def _are_objects(values: list[Any]) -> bool:
    return all(isinstance(value, Mapping) for value in values)
