"""`quant_method` fp8: DeepSeek's blocks as transformers writes them, and AutoFP8's scale for a whole matrix."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from jaxinfer.checkpoint.formats.declared import Declared, Group
from jaxinfer.checkpoint.formats.format import TensorFormat
from jaxinfer.checkpoint.formats.parts.scales import GroupScales, row_scales, spread
from jaxinfer.checkpoint.formats.parts.stored import Parts, held_group
from jaxinfer.checkpoint.formats.settings.kv_codes import read_kv_codes
from jaxinfer.checkpoint.formats.settings.lists import read_left_out
from jaxinfer.checkpoint.formats.settings.sizes import read_block
from jaxinfer.checkpoint.formats.settings.unused import KV_SCALES
from jaxinfer.checkpoint.sources import FLOATS, Derived, Index, Read, Shape, Source, Tensor, TensorFault
from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.quantization.scheme import Scheme

_SCALES = (*FLOATS, "F8_E8M0")
_WITHOUT_SIGN, _NO_NUMBER = 0x7F, 0x7F
_BYTES_AT_ONCE = 2**18  # fit a cache of a core


@dataclass(frozen=True)
class Fp8(TensorFormat):
    """`weight` in e4m3 and its scales, the tensor `scales`.

    block: rows and columns that share a scale; None: a scale for all of it, or one for each row.
    """

    block: tuple[int, int] | None = None
    scales: Literal["weight_scale_inv", "weight_scale"] = "weight_scale_inv"

    def scheme(self, depth: int) -> Scheme:
        """Activations stay as they are."""
        return Scheme("e4m3", held_group(depth, None if self.block is None else self.block[1]))

    def parts(self, module: str, shape: Shape) -> Parts:
        """Scales of blocks are for each row here, since each device holds some of the rows."""
        rows, depth = shape
        codes = _Codes(Tensor(f"{module}.weight", shape, ("F8_E4M3",)))
        name = f"{module}.{self.scales}"
        if self.block is None:
            return Parts(codes, row_scales(name, rows), depth)
        down, across = self.block
        blocks: Source = GroupScales(Tensor(name, (-(-rows // down), -(-depth // across)), _SCALES))
        return Parts(codes, spread(blocks, 0, min(down, rows), rows), across)

    def placed(self, found: Collection[str]) -> "Fp8":
        """transformers call scales `weight_scale_inv`, AutoFP8 `weight_scale`."""
        theirs = any(name.endswith(".weight_scale_inv") for name in found)
        return replace(self, scales="weight_scale_inv" if theirs else "weight_scale")

    def __str__(self) -> str:
        return "fp8" if self.block is None else f"fp8 in blocks of {self.block[0]} x {self.block[1]}"


@dataclass(frozen=True)
class _Codes(Derived):
    """e4m3 codes. Raises TensorFault for one that is no number, which would make every answer NaN."""

    def read(self, index: Index, read: Read) -> np.ndarray:
        codes = self.source.read(index, read)
        flat = codes.reshape(-1).view(np.uint8)
        for start in range(0, flat.size, _BYTES_AT_ONCE):
            if (flat[start : start + _BYTES_AT_ONCE] & _WITHOUT_SIGN).max() == _NO_NUMBER:
                raise TensorFault(next(iter(self.tensors)).name, "has a value that is not a number")
        return codes


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
