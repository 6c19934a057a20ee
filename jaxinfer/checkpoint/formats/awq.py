"""`quant_method` awq: AutoAWQ's GEMM form."""

from dataclasses import dataclass

from jaxinfer.checkpoint.formats.declared import Declared, Group
from jaxinfer.checkpoint.formats.format import TensorFormat
from jaxinfer.checkpoint.formats.parts.packing import WORDS, Unpacked, words
from jaxinfer.checkpoint.formats.parts.scales import GroupScales
from jaxinfer.checkpoint.formats.parts.stored import Parts, held_group
from jaxinfer.checkpoint.formats.settings.auto_round import is_by_auto_round, left_out_by_auto_round
from jaxinfer.checkpoint.formats.settings.lists import read_left_out_pieces
from jaxinfer.checkpoint.formats.settings.sizes import read_group_size
from jaxinfer.checkpoint.sources import Shape, Source, Tensor, Turned
from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.errors import quoted
from jaxinfer.quantization.scheme import Scheme

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
_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place of each of eight columns in a word, from the lowest bits: AutoAWQ packs columns 0, 2, 4, 6, 1, 3, 5, 7."""


@dataclass(frozen=True)
class Awq(TensorFormat):
    """AutoAWQ's GEMM form, 4 bits: `qweight`, `qzeros`, `scales`. group: columns that share a scale, None for all."""

    group: int | None

    def scheme(self, depth: int) -> Scheme:
        """Codes and zeros less 8."""
        return Scheme("int4", held_group(depth, self.group), zeros=True)

    def parts(self, module: str, shape: Shape) -> Parts:
        """Codes and zeros less 8. Its tensors are turned."""
        rows, depth = shape
        group, across = self.group or depth, words(rows, 4)
        count = -(-depth // group)

        def read(name: str, length: int) -> Source:
            tensor = Tensor(f"{module}.{name}", (length, across), WORDS)
            return Turned(Unpacked(tensor, 1, rows, 4, _ORDER, less=8), (1, 0))

        scales = Turned(GroupScales(Tensor(f"{module}.scales", (count, rows))), (1, 0))
        return Parts(read("qweight", depth), scales, group, read("qzeros", count))

    def __str__(self) -> str:
        return "AWQ"


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
