"""Types that keys and values may be kept in, whatever the type of activations. No jax."""

from typing import Literal

KVCodes = Literal["bfloat16", "float8_e4m3fn", "int8"]
ScaledKVCodes = Literal["float8_e4m3fn", "int8"]
"""Types of keys and values that are divided by a scale first."""

KV_CODES: dict[str, KVCodes | None] = {
    "auto": None,
    **dict.fromkeys(("bf16", "bfloat16"), "bfloat16"),
    **dict.fromkeys(("fp8", "fp8_e4m3"), "float8_e4m3fn"),
    "int8": "int8",
}
"""Types of keys and values by the names of the setting `kv_cache_dtype`; None: that of activations."""
SCALED: tuple[ScaledKVCodes, ...] = ("float8_e4m3fn", "int8")
