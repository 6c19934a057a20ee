"""A writer of GPTQ's forms: tensors by their names, and the values [N, K] float32 that they mean."""

import numpy as np

from tests.quantization.writers.compressed_tensors import Order, groups_of, pack
from tests.quantization.writers.fp8 import Written, scales_of


def gptq(
    rng: np.random.Generator,
    module: str,
    rows: int,
    depth: int,
    *,
    bits=4,
    group: int | None = 32,
    version=1,
    symmetric=True,
    order: Order = "columns",
    bias=False,
) -> Written:
    """version 1: zeros are stored less one. symmetric: all zeros are in the middle. bias: one of zeros, as AutoGPTQ
    writes for modules that have none."""
    size, codes = group or depth, rng.integers(0, 2**bits, (rows, depth))
    count = -(-depth // size)
    zeros = np.full((rows, count), 2 ** (bits - 1)) if symmetric else rng.integers(0, 2**bits, (rows, count))
    groups = groups_of(rng, module, depth, size, order)
    scales = scales_of(rng, zeros.shape, 2 ** (bits - 1), "f2")
    values = np.empty(codes.shape, np.float32)
    for column in range(depth):
        at = groups[column]
        values[:, column] = (codes[:, column] - zeros[:, at]).astype(np.float32) * scales[:, at].astype(np.float32)
    stored = (zeros - 1) % 2**bits if version == 1 else zeros
    tensors = {
        "qweight": np.ascontiguousarray(pack(codes, bits).T),
        "qzeros": pack(stored.T, bits),
        "scales": scales.T,
        "g_idx": groups.astype(np.int32),
    }
    if bias:
        tensors["bias"] = np.zeros(rows, np.float16)
    return {f"{module}.{name}": tensor for name, tensor in tensors.items()}, values
