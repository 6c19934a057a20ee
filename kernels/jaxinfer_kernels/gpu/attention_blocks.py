"""Block sizes of the GPU attention kernel, a rule from shapes; and which shapes it takes."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

MULTIPROCESSORS = 132
"""Multiprocessors of an H100 or H200 with SXM."""

SHARED_BYTES = 227 << 10
"""Shared memory that one program may have. A multiprocessor has a KiB more, and keeps one of each program's."""

_BARRIER_BYTES = 1 << 10
_ROWS = 64
_MOST_STAGES = 4


@dataclass(frozen=True)
class GpuBlocks:
    """Tile sizes of one attention call.

    keys, stages: keys a tile of short rows, 64 or 128, and tiles in shared memory at once. long_keys, long_stages: the
    same for long rows. warpgroups: warpgroups that compute a long block, 1 or 2; each has 64 rows, its tokens by the
    query group. programs: programs that the device runs at once. least: tiles below which a row's keys are not split
    further. in_place: the matrix unit itself accumulates products. False for Pallas' own interpreter, which only knows
    sums that begin at zero; it takes more registers, too many for values of 256.
    """

    keys: int
    stages: int
    long_keys: int
    long_stages: int
    warpgroups: int
    programs: int
    least: int
    in_place: bool = True

    def __post_init__(self) -> None:
        for name, allowed in (("keys", (64, 128)), ("long_keys", (64, 128)), ("warpgroups", (1, 2))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be {allowed[0]} or {allowed[1]}, not {getattr(self, name)}")
        for name, least in (("stages", 2), ("long_stages", 2), ("programs", 1), ("least", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")


def gpu_blocks(key_dim: int, value_dim: int, narrow: bool = False) -> GpuBlocks:
    """The sizes for heads of these dims; narrow: pages of 8 bits.

    Two programs of short rows share a multiprocessor where both have room for two stages, so that one computes while
    the other waits; tiles of 64 keys are the smallest that wgmma takes well. A long block has all of a multiprocessor,
    and tiles of 128 keys where ptxas spills no register then: keys of at most 64, and heads of 128.
    """

    def fitting(room: int, keys: int, groups: int) -> int:
        fixed, stage = shared_bytes(key_dim, value_dim, keys, groups, narrow)
        return min((room - fixed) // stage, _MOST_STAGES)

    half = (SHARED_BYTES - (1 << 10)) // 2
    pair = fitting(half, 64, 1) >= 2
    long = (key_dim <= 64 and value_dim <= 128) or key_dim == value_dim == 128
    keys, groups = (128 if long else 64), (1 if narrow or max(key_dim, value_dim) > 192 else 2)
    return GpuBlocks(
        keys=64,
        stages=max(fitting(half if pair else SHARED_BYTES, 64, 1), 2),
        long_keys=keys,
        long_stages=max(fitting(SHARED_BYTES, keys, groups), 2),
        warpgroups=groups,
        programs=MULTIPROCESSORS * (2 if pair else 1),
        least=4,
    )


def shared_bytes(key_dim: int, value_dim: int, keys: int, warpgroups: int, narrow: bool) -> tuple[int, int]:
    """Shared memory of a program in bytes: what it has once, and for each stage."""
    both = key_dim + value_dim
    rows = key_dim + keys + key_dim + (value_dim if value_dim != key_dim else 0)
    fixed = warpgroups * _ROWS * rows * 2 + (keys * both * 2 if narrow else 0)
    return fixed + _BARRIER_BYTES, keys * both * (1 if narrow else 2)


def check_gpu_shapes(q: Any, pages: Any, group: int, key_dim: int, value_dim: int, page: int) -> None:
    """Raises ValueError, which names what is allowed, for a call that the kernel cannot do.

    q, pages: types. group: query heads a KV head. page: tokens a page.
    """
    if q not in (jnp.bfloat16, jnp.float16):
        raise ValueError(f"q of mosaic_gpu must be bfloat16 or float16, which wgmma multiplies, not {jnp.dtype(q)}")
    if pages != q and pages not in (jnp.int8, jnp.float8_e4m3fn):
        raise ValueError(
            f"kv_pages of mosaic_gpu must be {jnp.dtype(q)}, int8 or float8_e4m3fn, not {jnp.dtype(pages)}"
        )
    if group > _ROWS:
        raise ValueError(f"q of mosaic_gpu must have at most {_ROWS} heads a KV head, not {group}")
    equal = key_dim == value_dim <= 128 and key_dim % 16 == 0
    if not (equal or key_dim % 64 == value_dim % 64 == 0) or max(key_dim, value_dim) > 256:
        raise ValueError(
            "keys and values of mosaic_gpu must have one size, a multiple of 16 up to 128, or each a multiple of 64 "
            f"up to 256, not {key_dim} and {value_dim}"
        )
    if value_dim == 256 and key_dim < 192 and pages != q:
        raise ValueError(
            "values of mosaic_gpu of 256 in pages of 8 bits must have keys of 192 or 256, or registers do not suffice, "
            f"not {key_dim}"
        )
    if page < 8 or page & (page - 1):
        raise ValueError(f"pages of mosaic_gpu must hold a power of two of tokens, at least 8, not {page}")
