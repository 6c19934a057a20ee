"""Cases: what is compiled for a target, and which of its arrays must stay where they are."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxinfer_kernels.check.collectives import Exchange
from jaxinfer_kernels.check.targets import Target
from jaxinfer_kernels.layouts import KVLayout

_HALF_BYTES = tuple(map(jnp.dtype, (jnp.int4, jnp.uint4, jnp.float4_e2m1fn)))
_SHORT = {
    **{"bfloat16": "bf16", "float32": "f32", "float8_e4m3fn": "fp8"},
    **{"float4_e2m1fn": "e2m1", "float8_e8m0fnu": "e8m0"},
}
LEAST_KEPT = 1 << 20
"""Bytes below which an array is not watched: activations are as large, and copying it costs little."""


class Kept(NamedTuple):
    """An array that must not be copied, and its bytes: KV pages, a layer of them, a weight."""

    name: str
    size: int


class Lowering(NamedTuple):
    """A traced program (`jax.stages.Lowered`), and the options that it is compiled with."""

    lowered: Any
    options: dict[str, Any] | None = None

    def compile(self) -> Any:
        """The executable."""
        return self.lowered.compile(compiler_options=self.options)


class Case(NamedTuple):
    """A program to compile.

    program, shape: what the table calls it. lower: traces it for the devices of a target, of which it may use the
    first ones. kept: what must not be copied. donated: bytes of pages that must be updated in place.
    cannot: why it is not compiled for this target, where it is not; such a case is listed. wgmma: GPU kernels with
    this in their names must multiply with Hopper's matrix unit. exchange: what devices may send each other; None: it
    runs on one. topology: XLA's name of its devices, where they are not the target's. Of a program for several devices,
    sizes are those of one.
    """

    program: str
    shape: str
    lower: Callable[[Sequence[Any]], Lowering]
    kept: tuple[Kept, ...] = ()
    donated: int = 0
    cannot: str = ""
    wgmma: str = ""
    exchange: Exchange | None = None
    topology: str = ""


CaseSource = Callable[[Target, bool], list[Case]]
"""source(target, whether all shapes are wanted)."""


class Argument(NamedTuple):
    """Shape and dtype of an array argument."""

    shape: tuple[int, ...]
    dtype: Any


def lower_function(
    function: Callable[..., Any], arguments: Sequence[Argument], donated: tuple[int, ...], devices: Sequence[Any]
) -> Lowering:
    """`function` under jit, for the first device."""
    mesh = Mesh(np.array(devices[:1]), ("device",))
    sharding = NamedSharding(mesh, PartitionSpec())
    shapes = [jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for shape, dtype in arguments]
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        return Lowering(jax.jit(function, donate_argnums=donated).lower(*shapes))


def array_bytes(shape: Sequence[int], dtype: Any) -> int:
    """Bytes of an array on a device, where int4 and e2m1 take half a byte."""
    bits = 4 if jnp.dtype(dtype) in _HALF_BYTES else jnp.dtype(dtype).itemsize * 8
    return int(np.prod(shape, dtype=np.int64)) * bits // 8


def kept_pages(shape: Sequence[int], dtype: Any, layout: KVLayout) -> tuple[Kept, ...]:
    """KV pages of `layout`, a layer of them, and the keys or values of a layer, where they lie apart."""
    whole = array_bytes(shape, dtype)
    parts = [Kept("the KV pages", whole), Kept("a layer of KV pages", whole // shape[0])]
    if layout is KVLayout.TOKENS:
        parts.append(Kept("the keys or values of a layer", whole // shape[0] // 2))
    return tuple(part for part in parts if part.size >= LEAST_KEPT)


def kept_weights(arrays: Sequence[tuple[str, Sequence[int], Any]]) -> tuple[Kept, ...]:
    """Weights, given as (name, shape, dtype), that are large enough to be watched; one of each size."""
    sizes = {array_bytes(shape, dtype): f"weight {name}" for name, shape, dtype in arrays}
    return tuple(Kept(name, size) for size, name in sizes.items() if size >= LEAST_KEPT)


def short_name(kind: Any) -> str:
    """A dtype as the table calls it."""
    name = jnp.dtype(kind).name
    return _SHORT.get(name, name)
