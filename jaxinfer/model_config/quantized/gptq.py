"""`quant_method` gptq: AutoGPTQ's form and GPTQModel's second version of it."""

from typing import Any

from jaxinfer.errors import quoted
from jaxinfer.model_config.quantized.auto_round import left_out_by_auto_round
from jaxinfer.model_config.quantized.sizes import read_group_size
from jaxinfer.model_config.reader import ConfigReader
from jaxinfer.quantization.declared import Declared, Group
from jaxinfer.quantization.formats import Gptq
from jaxinfer.quantization.modules import Modules, checked_pattern

_OF_THE_SEARCH = (
    "damp_percent", "damp_auto_increment", "true_sequential", "static_groups", "act_group_aware", "hyb_act", "mse",
    "mock_quantization", "batch_size", "dataset", "tokenizer", "model_seqlen", "max_input_length", "pad_token_id",
    "block_name_to_quantize", "module_name_preceding_first_block", "cache_block_outputs", "model_name_or_path",
    "model_file_base_name", "meta", "adapter", "rotation", "offload_to_disk", "offload_to_disk_path",
    "pack_impl", "gptaq", "gptaq_alpha",
)  # fmt: skip
_OF_OTHERS = ("backend", "use_exllama", "disable_exllama", "exllama_config", "use_cuda_fp16")
_EMPTY = (".bias",)
"""AutoGPTQ gives every module a bias, of zeros where the model has none."""
_LESS = {"gptq": 1, "gptq_v2": 0}


def read(config: ConfigReader) -> Declared:
    """Every matrix of layers but routers, or those that the file lists; the head where it says so."""
    for name in (*_OF_THE_SEARCH, *_OF_OTHERS):
        config.get(name)
    config.only("is_marlin_format", False)
    config.only("pack_dtype", "int32")
    form = _format(config)
    others, ignored = _dynamic(config, form), left_out_by_auto_round(config)
    named, every = _listed(config), "modules_in_block_to_quantize" not in config
    head = config.flag("lm_head")
    return Declared("gptq", (*others, Group(form, named, every)), ignored, head=head, zeros=_EMPTY)


def _format(config: ConfigReader) -> Gptq:
    name = config.get("checkpoint_format", config.get("format", "gptq"))
    config.get("format")
    if not isinstance(name, str) or name not in _LESS:
        raise config.error("checkpoint_format", f"{quoted(name)} is not supported; {' and '.join(_LESS)} are")
    bits = config.integer("bits")
    if bits not in (4, 8):
        raise config.error("bits", f"{quoted(bits)} is not supported; 4 and 8 are")
    group = read_group_size(config)
    order = config.flag("desc_act") and group is not None
    return Gptq(4 if bits == 4 else 8, group, config.flag("sym", True), 1 if _LESS[name] else 0, order)


def _listed(config: ConfigReader) -> Modules:
    """`modules_in_block_to_quantize`: lists of names of a layer's modules."""
    lists = config.get("modules_in_block_to_quantize", [])
    if not isinstance(lists, list):
        raise config.error("modules_in_block_to_quantize", f"must be a list, not {quoted(lists)}")
    names = [name for one in lists for name in (one if isinstance(one, list) else [one])]
    if not all(isinstance(name, str) for name in names):
        raise config.error("modules_in_block_to_quantize", "must hold names of modules")
    return Modules(parts=tuple(names))


def _dynamic(config: ConfigReader, form: Gptq) -> list[Group]:
    """Groups by regular expressions, of which the first that matches decides: `-:` before one leaves modules as they
    are."""
    rules = config.mapping("dynamic")
    return [] if rules is None else [_ruled(rules, rule, form) for rule in rules.names]


def _ruled(rules: ConfigReader, rule: str, form: Gptq) -> Group:
    inner = rules.mapping(rule)
    assert inner is not None
    pattern = checked_pattern(rule.removeprefix("-:").removeprefix("+:"), rules.where)
    return Group(None if rule.startswith("-:") else _changed(inner, form), Modules(patterns=(pattern,)))


def _changed(config: ConfigReader, form: Gptq) -> Gptq:
    """The form of modules for which the file says something else."""
    said: dict[str, Any] = {name: config.get(name) for name in config.names}
    raw = {"bits": form.bits, "group_size": form.group or -1, "sym": form.symmetric, "desc_act": form.act_order, **said}
    inner = ConfigReader({"checkpoint_format": "gptq" if form.less else "gptq_v2", **raw}, config.where, config.unknown)
    found = _format(inner)
    inner.finish(frozenset(_OF_THE_SEARCH))
    return found
