"""Writers of fp8 matrices: tensors by their names, and the values [N, K] float32 that they stand for."""

from typing import Any

import ml_dtypes
import numpy as np

Written = tuple[dict[str, np.ndarray], np.ndarray]


def e4m3_codes(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """All bytes but the two that are no numbers."""
    codes = rng.integers(0, 254, shape).astype(np.uint8)
    codes[codes >= 127] += 1
    return codes.view(ml_dtypes.float8_e4m3fn)


def scales_of(rng: np.random.Generator, shape: tuple[int, ...], largest: int, dtype: Any = "f4") -> np.ndarray:
    """Scales that make the largest code a value near 0.2."""
    return (rng.uniform(0.1, 0.4, shape) / largest).astype(dtype)


def by_blocks(
    rng: np.random.Generator,
    module: str,
    rows: int,
    depth: int,
    *,
    block=(128, 128),
    name="weight_scale_inv",
    dtype: Any = "f4",
) -> Written:
    codes = e4m3_codes(rng, (rows, depth))
    scales = scales_of(rng, (-(-rows // block[0]), -(-depth // block[1])), 448, dtype)
    values = np.empty((rows, depth), np.float32)
    for row in range(rows):
        for column in range(0, depth, block[1]):
            part = slice(column, column + block[1])
            scale = np.float32(scales[row // block[0], column // block[1]])
            values[row, part] = codes[row, part].astype(np.float32) * scale
    return {f"{module}.weight": codes, f"{module}.{name}": scales}, values


def by_matrix(
    rng: np.random.Generator, module: str, rows: int, depth: int, *, name="weight_scale", shape=(), static=True
) -> Written:
    codes, scale = e4m3_codes(rng, (rows, depth)), scales_of(rng, shape, 448)
    tensors = {f"{module}.weight": codes, f"{module}.{name}": scale}
    if static:
        tensors[f"{module}.input_scale"] = np.float32(0.5).reshape(shape)
    return tensors, codes.astype(np.float32) * np.float32(scale.item())


def by_row(rng: np.random.Generator, module: str, rows: int, depth: int, *, name="weight_scale", flat=False) -> Written:
    codes, scales = e4m3_codes(rng, (rows, depth)), scales_of(rng, (rows, 1), 448)
    tensors = {f"{module}.weight": codes, f"{module}.{name}": scales[:, 0] if flat else scales}
    return tensors, codes.astype(np.float32) * scales
