"""Keys that auto-round adds to the forms of AutoGPTQ and AutoAWQ."""

import re

from jaxinfer.checkpoint.formats.modules import Modules, checked_pattern
from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.errors import quoted

_OF_THE_SEARCH = (
    "autoround_version", "provider", "packing_format", "iters", "lr", "minmax_lr", "lr_scheduler", "nsamples", "seqlen",
    "batch_size", "gradient_accumulate_steps", "low_gpu_mem_usage", "low_cpu_mem_usage", "enable_quanted_input",
    "enable_minmax_tuning", "enable_norm_bias_tuning", "enable_torch_compile", "enable_alg_ext", "not_use_best_mse",
    "dataset", "amp", "scale_dtype", "seed", "sampler", "dynamic_max_gap", "model_free", "momentum", "nblocks",
    "block_name_to_quantize", "to_quant_block_names", "quant_block_list", "quant_lm_head", "act_sym", "act_dynamic",
    "act_group_size", "act_data_type", "supported_types", "device", "tuning_bs",
)  # fmt: skip
_PLAIN_BITS = 16
_SYNTAX = re.compile(r"[*+?^$|\\()\[\]{}]")


def is_by_auto_round(config: ConfigReader) -> bool:
    """Return whether auto-round wrote the file."""
    return "autoround_version" in config or config.get("provider") == "auto-round"


def left_out_by_auto_round(config: ConfigReader) -> Modules:
    """Read what auto-round adds; return the modules that its `extra_config` leaves as they are.

    Raises ModelError for activations and modules of other bits, and for other types.
    """
    if not is_by_auto_round(config):
        return Modules()
    for name in _OF_THE_SEARCH:
        config.get(name)
    config.only("data_type", "int")
    if config.integer("act_bits", _PLAIN_BITS) < _PLAIN_BITS:
        raise config.error("act_bits", f"{config.get('act_bits')} is not supported; only weights may be quantised")
    extra = config.mapping("extra_config")
    left = [] if extra is None else [name for name in extra.names if _is_left_out(config, extra, name)]
    patterns = [name for name in left if _SYNTAX.search(name)]
    where = f"{config.where}: extra_config"
    return Modules(
        names=tuple(name for name in left if name not in patterns),
        patterns=tuple(checked_pattern(pattern, where) for pattern in patterns),
    )


def _is_left_out(config: ConfigReader, extra: ConfigReader, name: str) -> bool:
    inner = extra.mapping(name)
    assert inner is not None
    bits = inner.integer("bits", config.integer("bits", 4))
    if bits >= _PLAIN_BITS:
        return True
    for key in ("bits", "group_size", "sym", "data_type"):
        if key in inner and inner.get(key) != config.get(key):
            message = f"{key} of {name} is {quoted(inner.get(key))}, that of others {quoted(config.get(key))}"
            raise config.error("extra_config", f"{message}; all quantised modules must be alike")
    return False
