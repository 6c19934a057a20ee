"""Kernels with one fault each, and a sound one, as cases of the check: `python -m tests.kernels.broken_kernels`."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxinfer_kernels import KVLayout, RaggedRows, ragged_paged_attention
from jaxinfer_kernels.check.cases import Argument, Case, array_bytes, kept_pages, kept_weights, lower_function
from jaxinfer_kernels.check.command import main
from jaxinfer_kernels.check.targets import Target

PAGES = KVLayout.HEADS.shape(layers=2, pages=512, page_size=128, kv_heads=8, key_dim=128, value_dim=128)
TABLE = Argument((16, 32), jnp.int32)
COUNTS = Argument((16,), jnp.int32)
Q, K = Argument((16, 16, 128), jnp.bfloat16), Argument((16, 8, 128), jnp.bfloat16)


class Fault(NamedTuple):
    """A program, and what the check must say of it; nothing of a sound one."""

    problem: str
    function: Callable[..., Any]
    arguments: tuple[Argument, ...]
    donated: tuple[int, ...]


def attend(pages: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, *rows: jax.Array) -> Any:
    return ragged_paged_attention(
        q, k, v, pages, 1, RaggedRows(*rows), short_rows=16, short_len=1, scale=0.1, layout=KVLayout.HEADS
    )


def attend_to_copy(pages: jax.Array, *others: jax.Array) -> Any:
    """Writes to a copy, since what the pages held before is read afterwards: which page, the result tells."""
    out, written = attend(pages, *others)
    return out, written, pages[0, jnp.argmax(out[0, 0])]


def double_kernel(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] * 2


def double_layer(pages: jax.Array) -> Any:
    """A kernel that is given a layer, cut out of the pages."""
    layer = pages[1].reshape(-1, 128)
    block = pl.BlockSpec((1024, 128), lambda i: (i, 0))
    out_shape = jax.ShapeDtypeStruct((1024, 128), pages.dtype)
    out = pl.pallas_call(
        double_kernel,
        grid=(1,),
        in_specs=[block],
        out_specs=block,
        out_shape=out_shape,
    )(layer)
    return out, pages


def double_whole(x: jax.Array) -> jax.Array:
    """A block that VMEM does not hold."""
    return pl.pallas_call(double_kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def shares_kernel(x_ref: Any, out_ref: Any) -> None:
    """Each of many values is used again after all of them were made."""
    tiles = [jnp.exp(x_ref[pl.ds(8 * i, 8)]) for i in range(512)]
    total = sum(tiles)
    for i, tile in enumerate(tiles):
        out_ref[pl.ds(8 * i, 8)] = tile / total


def spilled(x: jax.Array) -> jax.Array:
    """512 registers' worth of values at once."""
    return pl.pallas_call(shares_kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def transposed(x: jax.Array, weight: jax.Array) -> Any:
    """A kernel that wants its weight the other way around."""
    turned = pl.pallas_call(double_kernel, out_shape=x)(x)
    block = pl.BlockSpec((256, 256), lambda i: (i, 0))
    out_shape = jax.ShapeDtypeStruct((256, 256), weight.dtype)
    call = pl.pallas_call(double_kernel, grid=(1,), in_specs=[block], out_specs=block, out_shape=out_shape)
    return turned, call(weight.T)


ATTENTION = (Argument(PAGES, jnp.bfloat16), Q, K, K, TABLE, COUNTS, COUNTS, COUNTS)
WEIGHT = Argument((8192, 8192), jnp.bfloat16)
BROKEN = {
    "sound attention": Fault("", attend, ATTENTION, (0,)),
    "attention without donation": Fault("not updated in place", attend, ATTENTION, ()),
    "attention that copies": Fault("copies the KV pages", attend_to_copy, ATTENTION, (0,)),
    "kernel over a cut layer": Fault("copies a layer of KV pages", double_layer, ATTENTION[:1], (0,)),
    "kernel with too large a block": Fault("vmem", double_whole, (Argument((1 << 15, 1 << 13), jnp.float32),), ()),
    "kernel that spills": Fault("bundles store a register", spilled, (Argument((4096, 128), jnp.float32),), ()),
    "transposed weight": Fault("copies weight up", transposed, (Argument((256, 256), jnp.bfloat16), WEIGHT), ()),
}


def broken_cases(target: Target, everything: bool) -> list[Case]:
    pages = kept_pages(PAGES, jnp.bfloat16, KVLayout.HEADS)
    kept = (*pages, *kept_weights([("up", WEIGHT.shape, WEIGHT.dtype)]))
    return [
        Case(
            name,
            "once",
            partial(lower_function, fault.function, fault.arguments, fault.donated),
            kept,
            array_bytes(PAGES, jnp.bfloat16) if fault.arguments[0].shape == PAGES else 0,
        )
        for name, fault in BROKEN.items()
    ]


if __name__ == "__main__":
    sys.exit(main(broken_cases, [sys.executable, "-m", "tests.kernels.broken_kernels"], description=__doc__ or ""))
