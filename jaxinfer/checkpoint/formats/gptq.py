"""`quant_method` gptq: AutoGPTQ's form and GPTQModel's second version of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jaxinfer.checkpoint.formats.declared import Declared, Group
from jaxinfer.checkpoint.formats.format import TensorFormat
from jaxinfer.checkpoint.formats.modules import Modules, checked_pattern
from jaxinfer.checkpoint.formats.parts.groups import GroupNumbers
from jaxinfer.checkpoint.formats.parts.packing import WORDS, unpacked, words
from jaxinfer.checkpoint.formats.parts.scales import GroupScales
from jaxinfer.checkpoint.formats.parts.stored import Parts, held_group
from jaxinfer.checkpoint.formats.settings.auto_round import left_out_by_auto_round
from jaxinfer.checkpoint.formats.settings.sizes import read_group_size
from jaxinfer.checkpoint.sources import Index, Read, Shape, Source, Tensor, TensorFault, Turned
from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.errors import quoted
from jaxinfer.quantization.scheme import Scheme

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


@dataclass(frozen=True)
class Gptq(TensorFormat):
    """`qweight`, `qzeros`, `scales`, `g_idx`.

    group: columns that share a scale, None for all. symmetric: all zeros are 2 ** (bits - 1). less: what was taken off
    zeros before they were packed, 1 in the first version of the form. act_order: columns are in groups by `g_idx`.
    """

    bits: Literal[4, 8]
    group: int | None
    symmetric: bool
    less: Literal[0, 1] = 1
    act_order: bool = False

    def scheme(self, depth: int) -> Scheme:
        """Codes and zeros less 2 ** (bits - 1)."""
        codes, group = "int4" if self.bits == 4 else "int8", held_group(depth, self.group)
        return Scheme(codes, group, not self.symmetric, ordered=self.act_order and group is not None)

    def parts(self, module: str, shape: Shape) -> Parts:
        """Codes and zeros less 2 ** (bits - 1). Its tensors are turned."""
        rows, depth = shape
        group, half = self.group or depth, 2 ** (self.bits - 1)
        count = -(-depth // group)
        packed = Tensor(f"{module}.qweight", (words(depth, self.bits), rows), WORDS)
        codes: Source = Turned(unpacked(packed, 0, self.bits, depth, less=half), (1, 0))
        packed = Tensor(f"{module}.qzeros", (count, words(rows, self.bits)), WORDS)
        zeros: Source = Turned(unpacked(packed, 1, self.bits, rows, plus=self.less, less=half), (1, 0))
        scales: Source = Turned(GroupScales(Tensor(f"{module}.scales", (count, rows))), (1, 0))
        groups = self.groups(module, depth)
        if self.symmetric:
            scales = _Symmetric(scales, zeros)
        if not self.act_order:
            codes = _InOrder(codes, groups.tensor, group)
        return Parts(codes, scales, group, None if self.symmetric else zeros, groups if self.act_order else None)

    def groups(self, module: str, depth: int) -> GroupNumbers:
        return GroupNumbers(Tensor(f"{module}.g_idx", (depth,), WORDS), self.group or depth)

    def __str__(self) -> str:
        return f"GPTQ of {self.bits} bits" + (" in the order of activations" if self.act_order else "")


@dataclass(frozen=True)
class _Symmetric:
    """Scales [N, groups] whose zeros are all 0. Raises TensorFault where one is not."""

    scales: Source
    zeros: Source

    @property
    def shape(self) -> Shape:
        return self.scales.shape

    @property
    def tensors(self) -> Iterator[Tensor]:
        yield from self.scales.tensors
        yield from self.zeros.tensors

    def read(self, index: Index, read: Read) -> np.ndarray:
        if self.zeros.read(index, read).any():
            name = next(iter(self.zeros.tensors)).name
            raise TensorFault(name, "has a zero off the middle, though quantization_config: sym is true")
        return self.scales.read(index, read)


@dataclass(frozen=True)
class _InOrder:
    """Codes [N, K] whose columns are in groups as they lie. Raises TensorFault where `groups` [K] says otherwise."""

    codes: Source
    groups: Tensor
    group: int

    @property
    def shape(self) -> Shape:
        return self.codes.shape

    @property
    def tensors(self) -> Iterator[Tensor]:
        yield from self.codes.tensors
        yield self.groups

    def read(self, index: Index, read: Read) -> np.ndarray:
        first, last, _ = index[1].indices(self.shape[1])
        numbers = self.groups.read((slice(first, last),), read)
        if (numbers != np.arange(first, last) // self.group).any():
            raise TensorFault(
                self.groups.name, "has columns in another order, though quantization_config: desc_act is false"
            )
        return self.codes.read(index, read)


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
