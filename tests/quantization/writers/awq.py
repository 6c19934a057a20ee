"""A writer of AutoAWQ's GEMM form: tensors by their names, and the values [N, K] float32 that they mean."""

import numpy as np

from tests.quantization.writers.fp8 import Written, scales_of

_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
"""Of eight columns the one that lies in nibble i."""


def pack(codes: np.ndarray) -> np.ndarray:
    """Codes of 4 bits [R, C] along C, eight in a word."""
    words = np.zeros((codes.shape[0], codes.shape[1] // 8), np.uint64)
    for word in range(words.shape[1]):
        for nibble, column in enumerate(_COLUMNS):
            words[:, word] += codes[:, 8 * word + column].astype(np.uint64) << np.uint64(4 * nibble)
    return words.astype(np.uint32).view(np.int32)


def gemm(rng: np.random.Generator, module: str, rows: int, depth: int, *, group: int | None = 32) -> Written:
    size = group or depth
    codes, zeros = rng.integers(0, 16, (rows, depth)), rng.integers(0, 16, (rows, -(-depth // size)))
    scales = scales_of(rng, zeros.shape, 8, "f2")
    values = np.empty(codes.shape, np.float32)
    for column in range(depth):
        at = column // size
        values[:, column] = (codes[:, column] - zeros[:, at]).astype(np.float32) * scales[:, at].astype(np.float32)
    tensors = {"qweight": pack(codes.T), "qzeros": pack(zeros.T), "scales": scales.T}
    return {f"{module}.{name}": tensor for name, tensor in tensors.items()}, values
