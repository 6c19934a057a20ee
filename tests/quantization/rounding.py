"""Quantisers in NumPy, one value after the other's formula: what a made scheme's values are."""

import ml_dtypes
import numpy as np


def rounded(name: str, values: np.ndarray, axis: int = -1) -> np.ndarray:
    """The values that a matrix of a layer has under a scheme of `--quantization`; axis: its inputs."""
    turned = np.moveaxis(values.astype(np.float32), axis, -1)
    if name == "int4" and turned.shape[-1] % 32 == 0:
        found = int4_values(turned)
    elif name.startswith("fp8"):
        found = e4m3_values(turned)
    else:
        found = int8_values(turned)
    return np.moveaxis(found, -1, axis)


def int8_values(values: np.ndarray) -> np.ndarray:
    """A scale a row, which makes the largest 127."""
    scales = _nonzero(np.abs(values).max(axis=-1, keepdims=True) * (np.float32(1) / np.float32(127)))
    return np.clip(np.rint(values / scales), -127, 127) * scales


def e4m3_values(values: np.ndarray) -> np.ndarray:
    """A scale a row, which makes the largest 448."""
    scales = _nonzero(np.abs(values).max(axis=-1, keepdims=True) * (np.float32(1) / np.float32(448)))
    return np.clip(values / scales, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scales


def int4_values(values: np.ndarray) -> np.ndarray:
    """A scale for 32 values, which makes that of largest magnitude -8."""
    cut = values.reshape(-1, 32)
    largest = cut[np.arange(len(cut)), np.abs(cut).argmax(axis=1)]
    scales = _nonzero(largest / np.float32(-8))[:, None]
    return (np.clip(np.rint(cut / scales), -8, 7) * scales).reshape(values.shape)


def _nonzero(scales: np.ndarray) -> np.ndarray:
    return np.where(scales == 0, np.float32(1), scales)
