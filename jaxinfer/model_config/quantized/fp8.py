"""`quant_method` fp8: DeepSeek's blocks as transformers writes them, and AutoFP8's scale for a whole matrix."""

from jaxinfer.model_config.quantized.kv_codes import read_kv_codes
from jaxinfer.model_config.quantized.lists import read_left_out
from jaxinfer.model_config.quantized.sizes import read_block
from jaxinfer.model_config.quantized.unused import KV_SCALES
from jaxinfer.model_config.reader import ConfigReader
from jaxinfer.quantization.declared import Declared, Group
from jaxinfer.quantization.formats import Fp8


def read(config: ConfigReader) -> Declared:
    """Activations stay as they are, though the file names a scheme for them: that is more exact."""
    config.only("activation_scheme", "dynamic", "static")
    config.get("dequantize")  # how others load it
    config.only("fmt", "e4m3", "float8_e4m3fn")
    config.only("scale_fmt", "float", "ue8m0")
    config.only("expert_dtype", "fp8")
    config.only("modules_to_convert", [])
    block = read_block(config, "weight_block_size") if "weight_block_size" in config else None
    return Declared(
        "fp8",
        (Group(Fp8(block), all=True),),
        ignored=read_left_out(config, "modules_to_not_convert", "ignored_layers"),
        unused=(".input_scale", ".activation_scale", *KV_SCALES),
        kv_codes=read_kv_codes(config),
    )
