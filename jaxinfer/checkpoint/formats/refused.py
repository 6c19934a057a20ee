"""Tools whose checkpoints are not read, and what to use instead."""

_PLAIN = "use the unquantised checkpoint, with --quantization int8 or int4 if memory is short"
_FP8 = "use the unquantised checkpoint with --quantization fp8, or one in fp8 or compressed-tensors' form"

REFUSED = {
    "bitsandbytes": _PLAIN,
    "torchao": _PLAIN,
    "hqq": _PLAIN,
    "exl2": _PLAIN,
    "exl3": _PLAIN,
    "aqlm": _PLAIN,
    "vptq": _PLAIN,
    "quip": _PLAIN,
    "spqr": _PLAIN,
    "higgs": _PLAIN,
    "fp_quant": _PLAIN,
    "quanto": _PLAIN,
    "eetq": _PLAIN,
    "sinq": _PLAIN,
    "bitnet": "its products are of three values, which no kernel here multiplies",
    "quark": _FP8,
    "fbgemm_fp8": _FP8,
    "auto-round": "export it in the form auto_gptq or auto_awq",
    "intel/auto-round": "export it in the form auto_gptq or auto_awq",
}
