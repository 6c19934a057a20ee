"""Writers of compressed-tensors' integers: tensors by their names, and the values [N, K] float32 that they mean."""

import re
import zlib
from typing import Literal

import numpy as np

from tests.quantization.writers.fp8 import Written, scales_of

Order = Literal["columns", "inputs", "module"]
"""In which the columns of a matrix are in groups: as they lie; in one that modules with the same inputs share, as tools
write them; or in one of the module's own."""


def groups_of(rng: np.random.Generator, module: str, depth: int, group: int, order: Order) -> np.ndarray:
    """For each column the number of its group, [depth] int32."""
    groups = (np.arange(depth) // group).astype(np.int32)
    if order == "columns":
        return groups
    inputs = re.sub("(q|k|v|gate|up)_proj$", "", module)
    return (rng if order == "module" else np.random.default_rng(zlib.crc32(inputs.encode()))).permutation(groups)


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Unsigned codes [R, C] along C to int32 [R, ceil(C * bits / 32)], the first of a word in its lowest bits."""
    words = np.zeros((codes.shape[0], -(-codes.shape[1] * bits // 32)), np.uint64)
    for column in range(codes.shape[1]):
        word, place = divmod(column * bits, 32)
        words[:, word] += codes[:, column].astype(np.uint64) << np.uint64(place)
    return words.astype(np.uint32).view(np.int32)


def packed(
    rng: np.random.Generator, module: str, rows: int, depth: int, *, bits=4, group: int | None = 32, zeros=False
) -> Written:
    size, half = group or depth, 2 ** (bits - 1)
    codes = rng.integers(-half, half, (rows, depth))
    scales = scales_of(rng, (rows, depth // size), half, "f2")
    middle = rng.integers(-half, half, scales.shape) if zeros else np.zeros(scales.shape, int)
    tensors = {
        f"{module}.weight_packed": pack(codes + half, bits),
        f"{module}.weight_scale": scales,
        f"{module}.weight_shape": np.array([rows, depth], np.int64),
    }
    if zeros:
        tensors[f"{module}.weight_zero_point"] = np.ascontiguousarray(pack((middle + half).T, bits).T)
    return tensors, _values(codes, scales, middle)


def ordered(rng: np.random.Generator, module: str, rows: int, depth: int, *, order: Order = "inputs") -> Written:
    """4 bits, groups of 32 columns."""
    codes, scales = rng.integers(-8, 8, (rows, depth)), scales_of(rng, (rows, depth // 32), 8)
    groups = groups_of(rng, module, depth, 32, order)
    values = np.stack([codes[:, k].astype(np.float32) * scales[:, groups[k]] for k in range(depth)], axis=1)
    tensors = {"weight_packed": pack(codes + 8, 4), "weight_scale": scales, "weight_g_idx": groups}
    tensors["weight_shape"] = np.array([rows, depth], np.int64)
    return {f"{module}.{name}": tensor for name, tensor in tensors.items()}, values


def whole(
    rng: np.random.Generator, module: str, rows: int, depth: int, *, group: int | None = None, zeros=False, shape=None
) -> Written:
    """int8 as it is; shape: of the scales, by default one a row or group."""
    codes = rng.integers(-128, 128, (rows, depth)).astype(np.int8)
    scales = scales_of(rng, shape or (rows, depth // (group or depth)), 128)
    middle = rng.integers(-128, 128, scales.shape).astype(np.int8) if zeros else np.zeros(scales.shape, np.int8)
    tensors = {f"{module}.weight": codes, f"{module}.weight_scale": scales, f"{module}.weight_zero_point": middle}
    wide = scales.shape if len(scales.shape) == 2 else (1, 1)
    return tensors, _values(codes, scales.reshape(wide), middle.reshape(wide))


def _values(codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    values = np.empty(codes.shape, np.float32)
    size = codes.shape[1] // scales.shape[1]
    for group in range(scales.shape[1]):
        part = slice(group * size, (group + 1) * size)
        steps = codes[:, part].astype(np.float32) - zeros[:, group : group + 1].astype(np.float32)
        values[:, part] = steps * scales[:, group : group + 1].astype(np.float32)
    return values
