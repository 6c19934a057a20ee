"""`quant_method` awq: AutoAWQ's GEMM form."""

from jaxinfer.errors import quoted
from jaxinfer.model_config.quantized.auto_round import is_by_auto_round, left_out_by_auto_round
from jaxinfer.model_config.quantized.lists import read_left_out_pieces
from jaxinfer.model_config.quantized.sizes import read_group_size
from jaxinfer.model_config.reader import ConfigReader
from jaxinfer.quantization.declared import Declared, Group
from jaxinfer.quantization.formats import Awq

_OF_OTHERS = (
    "backend",
    "do_fuse",
    "fuse_max_seq_len",
    "modules_to_fuse",
    "exllama_config",
    "desc_act",
    "sym",
    "true_sequential",
    "damp_percent",
)
"""Settings of other engines, and keys of GPTQ that transformers also writes."""


def read(config: ConfigReader) -> Declared:
    """Every matrix of layers but routers."""
    for name in _OF_OTHERS:
        config.get(name)
    version = config.get("version", config.get("format", "gemm"))
    if not isinstance(version, str) or version.lower() != "gemm":
        raise config.error("version", f"{quoted(version)} is not supported; gemm is, AutoAWQ's usual form")
    config.only("bits", 4)
    config.only("w_bit", 4)
    if not is_by_auto_round(config):  # which writes zero points whatever it says
        config.only("zero_point", True)
    config.get("zero_point")
    groups = (Group(None, left_out_by_auto_round(config)), Group(Awq(read_group_size(config)), all=True))
    return Declared("awq", groups, read_left_out_pieces(config, "modules_to_not_convert"))
