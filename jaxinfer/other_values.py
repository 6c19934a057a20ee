"""Values that settings have in other engines: what to give here instead."""

from jaxinfer.checkpoint.formats.refused import REFUSED

_FORMS = (
    *("awq", "awq_marlin", "gptq", "gptq_marlin", "marlin", "compressed-tensors", "compressed_tensors", "mxfp4"),
    *("modelopt", "modelopt_fp8", "modelopt_fp4", "nvfp4", "gpt_oss_mxfp4"),
)
_READ = "a checkpoint in this form needs no flag: its own quantization_config is followed"
_MADE = {
    "int8": ("tpu_int8", "experts_int8", "rtn", "w8a16", "q8_0"),
    "int4": ("w4a16", "q4_0"),
    "fp8": ("fp8_e4m3", "e4m3", "deepspeedfp"),
    "int8-w8a8": ("w8a8", "w8a8_int8", "blockwise_int8"),
    "fp8-w8a8": ("w8a8_fp8", "ptpc_fp8"),
}
_GGUF = "GGUF files are not read; use a safetensors checkpoint, with --quantization int8 or int4"
_E5M2 = "give fp8, which is e4m3: it takes as much memory and has one more bit for digits"

_HINTS = {
    "quantization": {
        **dict.fromkeys(_FORMS, _READ),
        **{name: f"give {ours}" for ours, names in _MADE.items() for name in names},
        **{name: f"checkpoints in this form are not read; {instead}" for name, instead in REFUSED.items()},
        **dict.fromkeys(("gguf", "ggml"), _GGUF),
    },
    "kv_cache_dtype": {
        "fp8_e5m2": _E5M2,
        **dict.fromkeys(("fp8_inc", "fp8_ds_mla", "float8_e4m3fn"), "give fp8"),
        **dict.fromkeys(("float16", "float32", "none"), "give auto, which keeps the type of activations"),
    },
}


def hint(setting: str, value: object) -> str:
    """Return the hint to add to an error about a setting's value; empty if the value is not known.

    setting: its name, or its flag.
    """
    known = _HINTS.get(setting.removeprefix("--").replace("-", "_"), {})
    text = known.get(value.lower()) if isinstance(value, str) else None
    return "" if text is None else f"; {text}"
