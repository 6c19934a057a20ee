"""Loads into registers and stores from them, for the GPU kernels."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

load: Any = plgpu.load
"""Without a type: in jax 0.10, where the kernels do not run but types are checked, it wants an index as well."""

_store: Any = getattr(plgpu, "store", None)


def store_plain(target: Any, value: jax.Array) -> None:
    """Store registers in global memory, or in shared memory that is laid out row by row.

    From jax 0.12 an assignment demands a layout without bank conflicts. Plain rows have none for the registers of
    wgmma, and the search for one takes minutes or does not end.
    """
    if _store is None:
        target[...] = value
    else:
        _store(target, value, optimized=False)


def keep_plain(flat: Any) -> None:
    """Make the compiler lay out `flat`, [64, D] of shared memory, row by row, as global memory is.

    It would choose a swizzle that suits the other accesses, and then rows that begin anywhere cannot be copied. A store
    in this layout of registers leaves it no choice; what it stores does not matter.
    """
    shape = (8, flat.shape[1])
    layout = plgpu.Layout.WG_STRIDED(shape, vec_size=math.gcd(math.prod(shape) // 128, 4))
    store_plain(flat.at[pl.ds(0, 8)], plgpu.layout_cast(jnp.zeros(shape, flat.dtype), layout))
