"""Settings as published checkpoints have them: every key is known, and the schemes are what they say."""

from typing import Any

import pytest

from jaxinfer.model_config.registry import parse_config
from jaxinfer.quantization.scheme import Scheme
from tests.quantization.checkpoints import LLAMA

_QWEN_GPTQ = {
    **{"batch_size": 1, "bits": 4, "block_name_to_quantize": None, "cache_block_outputs": True, "damp_percent": 0.01},
    **{"dataset": None, "desc_act": False, "exllama_config": {"version": 1}, "group_size": 128},
    **{"max_input_length": None, "model_seqlen": None, "module_name_preceding_first_block": None},
    **{"modules_in_block_to_quantize": None, "pad_token_id": None, "quant_method": "gptq", "sym": True},
    **{"tokenizer": None, "true_sequential": True, "use_cuda_fp16": False, "use_exllama": True},
}
_AUTO_GPTQ = {
    **{"bits": 4, "group_size": 128, "damp_percent": 0.1, "desc_act": True, "static_groups": False, "sym": True},
    **{"true_sequential": True, "model_name_or_path": None, "model_file_base_name": "model", "quant_method": "gptq"},
}
_GPTQ_MODEL = {
    **{"bits": 8, "checkpoint_format": "gptq", "desc_act": False, "dynamic": None, "group_size": 64, "hyb_act": False},
    **{"lm_head": False, "pack_dtype": "int32", "quant_method": "gptq", "sym": True},
    "meta": {"quantizer": ["gptqmodel:2.2.0"], "uri": "-", "damp_percent": 0.01, "mse": 0.0, "static_groups": False},
}
_AUTO_AWQ = {
    **{"backend": "autoawq", "bits": 4, "do_fuse": False, "exllama_config": None, "fuse_max_seq_len": None},
    **{"group_size": 128, "modules_to_fuse": None, "modules_to_not_convert": None, "quant_method": "awq"},
    **{"version": "gemm", "zero_point": True},
}
_MINIMAX = {
    **{"activation_scheme": "dynamic", "fmt": "float8_e4m3fn", "quant_method": "fp8", "weight_block_size": [128, 128]},
    "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
}
_MINISTRAL = {
    **{"activation_scheme": "static", "dequantize": False, "quant_method": "fp8", "weight_block_size": None},
    "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head", "model.vision_tower"],
}
_FP8_DYNAMIC = {
    "config_groups": {
        "group_0": {
            "input_activations": {
                **{"actorder": None, "block_structure": None, "dynamic": True, "group_size": None, "num_bits": 8},
                **{"observer": None, "observer_kwargs": {}, "strategy": "token", "symmetric": True, "type": "float"},
            },
            "output_activations": None,
            "targets": ["Linear"],
            "weights": {
                **{"actorder": None, "block_structure": None, "dynamic": False, "group_size": None, "num_bits": 8},
                **{"observer": "minmax", "observer_kwargs": {}, "strategy": "channel", "symmetric": True},
                "type": "float",
            },
        }
    },
    **{"format": "float-quantized", "global_compression_ratio": 1.46, "ignore": ["lm_head"], "kv_cache_scheme": None},
    **{"quant_method": "compressed-tensors", "quantization_status": "compressed"},
}
_MODELOPT_FP8 = {
    "config_groups": {
        "group_0": {"input_activations": {"num_bits": 8}, "weights": {"num_bits": 8}, "targets": ["Linear"]}
    },
    **{"ignore": ["lm_head"], "quant_algo": "FP8", "producer": {"name": "modelopt", "version": "0.33.1"}},
    **{"kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}, "quant_method": "modelopt"},
}


@pytest.mark.parametrize(
    ("quantization", "scheme"),
    [
        (_QWEN_GPTQ, Scheme("int4", 128)),
        (_AUTO_GPTQ, Scheme("int4", 128, ordered=True)),
        (_GPTQ_MODEL, Scheme("int8", 64)),
        (_AUTO_AWQ, Scheme("int4", 128, zeros=True)),
        (_MINIMAX, Scheme("e4m3", 128)),
        (_MINISTRAL, Scheme("e4m3")),
        (_FP8_DYNAMIC, Scheme("e4m3")),
        (_MODELOPT_FP8, Scheme("e4m3")),
    ],
)
def test_settings_are_read(quantization: dict[str, Any], scheme: Scheme) -> None:
    config = parse_config({**LLAMA, "quantization_config": quantization})
    assert {config.layers[0].schemes.qkv, config.layers[1].schemes.down} == {scheme}
    assert config.tables.table is None
