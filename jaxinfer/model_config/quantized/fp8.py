"""`quant_method` fp8: DeepSeek's blocks as transformers writes them, and AutoFP8's scale for a whole matrix."""

from jaxinfer.model_config.quantized.lists import read_left_out
from jaxinfer.model_config.quantized.unused import KV_SCALES
from jaxinfer.model_config.reader import ConfigReader
from jaxinfer.quantization.declared import Declared, Group
from jaxinfer.quantization.formats import Fp8


def read(config: ConfigReader) -> Declared:
    """Activations stay as they are, though the file names a scheme for them: that is more exact."""
    config.only("activation_scheme", "dynamic", "static")
    for name in ("dequantize", "kv_cache_scheme"):
        config.get(name)  # how others load it
    config.only("fmt", "e4m3", "float8_e4m3fn")
    config.only("scale_fmt", "float", "ue8m0")
    config.only("expert_dtype", "fp8")
    config.only("modules_to_convert", [])
    return Declared(
        "fp8",
        (Group(Fp8(_block(config)), all=True),),
        ignored=read_left_out(config, "modules_to_not_convert", "ignored_layers"),
        unused=(".input_scale", ".activation_scale", *KV_SCALES),
    )


def _block(config: ConfigReader) -> tuple[int, int] | None:
    block = config.get("weight_block_size")
    if block is None:
        return None
    if not isinstance(block, list) or len(block) != 2 or not all(type(size) is int and size > 0 for size in block):
        raise config.error("weight_block_size", "must be two integers above 0")
    return block[0], block[1]
