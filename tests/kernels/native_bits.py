"""Prints the bits of what the `native` backend gives: a program of its own, as XLA starts its threads but once.

`python -m tests.kernels.native_bits attention`, or `products`, with NPROC, the number of XLA's threads.
"""

import hashlib
import sys
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
from jaxinfer_kernels import ragged_paged_attention
from jaxinfer_kernels.cpu.matmul import native_product

from tests.kernels.batches import MIXES, Shape, make_batch


def attention() -> Iterator[np.ndarray]:
    """Yield the results of several batches."""
    for number, lengths in enumerate(MIXES.values()):
        shape = Shape(q_heads=6, kv_heads=2, dim=40, page=16)
        batch = make_batch(np.random.default_rng(number), lengths, shape, layer=1, short_len=1)
        q, k, v, kv_pages = map(jnp.asarray, batch[:4])
        out, _ = ragged_paged_attention(
            q, k, v, kv_pages, 1, batch.rows, short_rows=0, short_len=1, scale=0.3, backend="native"
        )  # fmt: skip
        yield np.asarray(out)


def products() -> Iterator[np.ndarray]:
    """Yield products with matrices of several pieces each, of values and of codes, and with those of experts."""
    rng = np.random.default_rng(0)
    weights, codes = rng.standard_normal((5, 300, 700)), jnp.asarray(rng.integers(-128, 128, (300, 700)), jnp.int8)
    scales = jnp.asarray(rng.uniform(0.01, 0.1, 300), jnp.float32)
    packed, groups = jnp.asarray(rng.integers(0, 256, (300, 352)), jnp.uint8), rng.uniform(0.01, 0.1, (2, 300, 22))
    sides = dict(zip(("scales", "zeros"), map(jnp.float32, groups), strict=True))
    for rows in (1, 7, 90):
        x = jnp.asarray(rng.standard_normal((rows, 704)), jnp.float32)
        yield np.asarray(native_product(x, packed, **sides, out_dtype=jnp.dtype(jnp.float32)))
        for dtype in (jnp.float32, jnp.bfloat16):
            x, w = jnp.asarray(rng.standard_normal((rows, 700)), dtype), jnp.asarray(weights, dtype)
            yield np.asarray(native_product(x, w[0], out_dtype=jnp.dtype(jnp.float32)))
            yield np.asarray(native_product(x, codes, scales=scales, out_dtype=jnp.dtype(jnp.float32)))
            sizes = jnp.asarray([0, rows // 2, 1, 0, rows // 3], jnp.int32)
            yield np.asarray(native_product(x, w, sizes, out_dtype=jnp.dtype(jnp.float32)))


def main(what: str) -> None:
    found = hashlib.sha256()
    for result in {"attention": attention, "products": products}[what]():
        assert np.isfinite(result).all()
        found.update(result.tobytes())
    print(found.hexdigest())


if __name__ == "__main__":
    main(sys.argv[1])
