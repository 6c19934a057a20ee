"""Quantised matrices as compressed-tensors writes them, and what a config.json says of them and of keys and values."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxinfer.errors import ParameterError
from jaxinfer.quantization.kv import ScaledKVCodes
from jaxinfer.quantization.scheme import Scheme

Parts = tuple[np.ndarray, np.ndarray]
"""Codes [N, K], int8 or e4m3, and scales [N, K / group] float32."""


class Spec(NamedTuple):
    """A tensor of a module: the end of its name, its type in safetensors, its shape, and how it is made of codes and
    scales."""

    end: str
    dtype: str
    shape: tuple[int, ...]
    made: Callable[[Parts], np.ndarray]


def check_scheme(scheme: Scheme, module: str) -> None:
    """Raises ParameterError for a scheme that is not written."""
    plain = not (scheme.zeros or scheme.ordered or scheme.factors) and scheme.scales == "float32"
    if not plain or scheme.codes == "e2m1" or (scheme.codes == "e4m3" and scheme.group is not None):
        raise ParameterError(
            "to",
            f"safetensors: {module} is held in {scheme}, which is not written as compressed-tensors; int8, int4 and "
            "fp8 without zeros and order are, or all by --to orbax",
        )


def specs(scheme: Scheme, rows: int, depth: int) -> tuple[Spec, ...]:
    """The tensors of a module [rows, depth]."""
    scales = Spec("weight_scale", "F32", (rows, scheme.groups(depth)), lambda parts: parts[1])
    if not _is_packed(scheme):
        dtype = "F8_E4M3" if scheme.codes == "e4m3" else "I8"
        return Spec("weight", dtype, (rows, depth), lambda parts: parts[0]), scales
    bits = 4 if scheme.codes == "int4" else 8
    shape = np.array([rows, depth], np.int64)
    return (
        Spec("weight_packed", "I32", (rows, -(-depth * bits // 32)), lambda parts: packed(parts[0], bits)),
        scales,
        Spec("weight_shape", "I64", (2,), lambda parts: shape),
    )


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes [N, K], 32 / bits of a row in an int32, the first in its lowest bits, each more by half their range."""
    count = 32 // bits
    words = (codes.astype(np.int16) + 2 ** (bits - 1)).astype(np.uint32)
    words = np.pad(words, ((0, 0), (0, -codes.shape[1] % count))).reshape(len(codes), -1, count)
    places = np.arange(count, dtype=np.uint32) * np.uint32(bits)
    return np.bitwise_or.reduce(words << places, axis=2).view(np.int32)


def quantization_config(
    modules: Mapping[str, Scheme], ignored: Sequence[str], kv_codes: ScaledKVCodes | None
) -> dict[str, Any]:
    """modules: the scheme of each quantised module, without the head of names that are not of modules. ignored: names
    of matrices that are held as they are, and patterns of them. kv_codes: the type that scales of keys and values are
    for."""
    schemes = sorted(set(modules.values()), key=lambda one: -sum(scheme == one for scheme in modules.values()))
    groups = {
        f"group_{number}": {
            "targets": ["Linear"] if number == 0 else [name for name, of in modules.items() if of == scheme],
            "weights": _weights(scheme),
            "input_activations": _activations(scheme),
            "output_activations": None,
            "format": _format(scheme),
        }
        for number, scheme in enumerate(schemes)
    }
    formats = dict.fromkeys(map(_format, schemes))
    return {
        "quant_method": "compressed-tensors",
        "format": next(iter(formats), "dense") if len(formats) < 2 else "mixed-precision",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None if kv_codes is None else _kv_cache(kv_codes),
        "config_groups": groups,
        "ignore": list(ignored),
    }


def every_module_below(name: str) -> str:
    """The pattern of modules whose names begin so, with or without the names of models around them: loaders change
    those. compressed-tensors matches from the beginning of a name."""
    return rf"re:(?:.*\.)?{re.escape(name.removeprefix('model.'))}.*"


def _is_packed(scheme: Scheme) -> bool:
    return scheme.codes == "int4" or scheme.group is not None


def _format(scheme: Scheme) -> str:
    if _is_packed(scheme):
        return "pack-quantized"
    return "float-quantized" if scheme.codes == "e4m3" else "int-quantized"


def _weights(scheme: Scheme) -> dict[str, Any]:
    return {
        "num_bits": 4 if scheme.codes == "int4" else 8,
        "type": "float" if scheme.codes == "e4m3" else "int",
        "symmetric": True,
        "strategy": "channel" if scheme.group is None else "group",
        "group_size": scheme.group,
        "dynamic": False,
        "actorder": None,
        "observer": "minmax",
    }


def _kv_cache(codes: ScaledKVCodes) -> dict[str, Any]:
    kind = "float" if codes == "float8_e4m3fn" else "int"
    one = {"num_bits": 8, "type": kind, "symmetric": True, "strategy": "tensor", "dynamic": False}
    return {**one, "group_size": None, "actorder": None, "observer": "minmax"}


def _activations(scheme: Scheme) -> dict[str, Any] | None:
    if scheme.activations == "none":
        return None
    kind = "float" if scheme.activations == "e4m3" else "int"
    return {"num_bits": 8, "type": kind, "symmetric": True, "strategy": "token", "dynamic": True}
