"""A form of each kind in which weights lie in checkpoints: its `quantization_config`, and what writes it."""

from functools import partial
from typing import Any

from tests.quantization.checkpoints import Writer
from tests.quantization.writers import awq, e2m1, fp8
from tests.quantization.writers import compressed_tensors as integers
from tests.quantization.writers.gptq import gptq

BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
STATIC = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}

IGNORE = ["lm_head", "re:.*mlp\\.gate$"]
TOKEN = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True, "observer": None}


def config_of_groups(form: str, weights: dict[str, Any] | None, **others: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "version": "0.12.2",
        "format": form,
        "config_groups": {"group_0": {**group, **others}},
        "ignore": IGNORE,
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
        "sparsity_config": {},
        "transform_config": {},
    }


def weights(bits: int, strategy: str, **others: Any) -> dict[str, Any]:
    base = {
        "num_bits": bits,
        "type": "int",
        "symmetric": True,
        "strategy": strategy,
        "dynamic": False,
        "actorder": None,
    }
    return {**base, "group_size": None, "block_structure": None, "observer": "minmax", "observer_kwargs": {}, **others}


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False, "damp_percent": 0.01}
MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        *("model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"),
    ],
}
MODELOPT = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "producer": {"name": "modelopt", "version": "0.41.0"},
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "config_groups": {"group_0": {"targets": ["Linear"]}},
    "ignore": ["lm_head", "model.layers.*.mlp.gate"],
}

FORMS: dict[str, tuple[dict[str, Any], Writer]] = {
    "fp8-blocks": (BLOCKS, fp8.by_blocks),
    "fp8-matrix": (STATIC, fp8.by_matrix),
    "fp8-rows": (STATIC, fp8.by_row),
    "w4a16": (
        config_of_groups("pack-quantized", weights(4, "group", group_size=64, symmetric=False)),
        partial(integers.packed, group=64, zeros=True),
    ),
    "w8a8": (config_of_groups("int-quantized", weights(8, "channel"), input_activations=TOKEN), integers.whole),
    "awq": ({**AWQ, "group_size": 64}, partial(awq.gemm, group=64)),
    "gptq": ({**GPTQ, "group_size": 64, "sym": False}, partial(gptq, group=64, symmetric=False)),
    "gptq-order": ({**GPTQ, "group_size": 64, "desc_act": True}, partial(gptq, group=64, order="inputs")),
    "gptq-orders": ({**GPTQ, "group_size": 64, "desc_act": True}, partial(gptq, group=64, order="module")),
    "mxfp4": (
        config_of_groups("mxfp4-pack-quantized", weights(4, "group", type="float", group_size=32)),
        e2m1.mxfp4,
    ),
    "nvfp4": (MODELOPT, partial(e2m1.nvfp4, compressed=False)),
}
