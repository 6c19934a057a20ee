"""Read the type of keys and values that a checkpoint's scales are for."""

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.quantization.kv import ScaledKVCodes

_EIGHT_BITS: dict[str, ScaledKVCodes] = {"float": "float8_e4m3fn", "int": "int8"}


def read_kv_codes(config: ConfigReader) -> ScaledKVCodes | None:
    """Return the type by `kv_cache_scheme` and `kv_cache_quant_algo`; fp8 if neither is given, as all tools that write
    scales without them mean. None: an unsupported type; keys and values are then kept in the type of activations."""
    algorithm = config.get("kv_cache_quant_algo")
    if algorithm not in (None, "FP8"):
        return None
    scheme = config.get("kv_cache_scheme")
    if scheme in (None, "static", "dynamic"):  # AutoFP8's
        return "float8_e4m3fn"
    wanted = {"num_bits": 8, "symmetric": True, "strategy": "tensor"}
    if not isinstance(scheme, dict) or any(scheme.get(name, value) != value for name, value in wanted.items()):
        return None
    return next((codes for kind, codes in _EIGHT_BITS.items() if scheme.get("type") == kind), None)
