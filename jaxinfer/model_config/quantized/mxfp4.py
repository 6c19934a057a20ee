"""`quant_method` mxfp4: gpt-oss' experts."""

from jaxinfer.model_config.quantized.lists import read_left_out
from jaxinfer.model_config.reader import ConfigReader
from jaxinfer.quantization.declared import Declared, Group
from jaxinfer.quantization.formats import Mxfp4


def read(config: ConfigReader) -> Declared:
    """The tensors that hold all experts of a layer, and no others."""
    config.get("dequantize")  # how others load it
    form = Mxfp4(experts=True)
    return Declared("mxfp4", (Group(form, all=True),), read_left_out(config, "modules_to_not_convert"))
