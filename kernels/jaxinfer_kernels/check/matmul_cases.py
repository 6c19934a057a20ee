"""Cases of the matmuls: weight-only quantised, and grouped by expert."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer_kernels.available import unavailable
from jaxinfer_kernels.check.cases import Argument, Case, kept_weights, lower_function, short_name
from jaxinfer_kernels.grouped_matmul import grouped_matmul
from jaxinfer_kernels.quantized_matmul import quantized_matmul

_BACKENDS = {"tpu": ("mosaic_tpu",), "cuda": ("xla", "mosaic_gpu")}


class Weights(NamedTuple):
    """Weights of a matmul. experts: 0 for a single matmul. group: values of K a scale, None for one a channel.

    zeros: whether a zero comes with each scale; named "+0". scales: their type; named where it is not float32. x: of
    activations; named where it is not bfloat16.
    """

    model: str
    experts: int
    columns: int
    depth: int
    kind: Any
    group: int | None = None
    zeros: bool = False
    scales: Any = jnp.float32
    x: Any = jnp.bfloat16

    @property
    def dims(self) -> tuple[int, ...]:
        return (self.columns, self.depth) if not self.experts else (self.experts, self.columns, self.depth)

    @property
    def sides(self) -> list[Argument]:
        """Scales, if any, and zeros, if any."""
        if self.kind == jnp.bfloat16:
            return []
        groups = [self.depth // self.group] if self.group else []
        return [Argument((*self.dims[:-1], *groups), self.scales)] * (2 if self.zeros else 1)

    def __str__(self) -> str:
        group = f"/{self.group}" if self.group else ""
        zeros = "+0" if self.zeros else ""
        scales = f" {short_name(self.scales)}" if self.scales != jnp.float32 else ""
        x = f" x {short_name(self.x)}" if self.x != jnp.bfloat16 else ""
        return f"{self.model} {self.columns} x {self.depth} {short_name(self.kind)}{group}{zeros}{scales}{x}"


class Kind(NamedTuple):
    """Weights as `Weights` describes them: type, group size, zeros, and the types of scales and of x."""

    type: Any
    group: int | None = None
    zeros: bool = False
    scales: Any = jnp.float32
    x: Any = jnp.bfloat16


_MXFP4 = Kind(jnp.float4_e2m1fn, 32, scales=jnp.float8_e8m0fnu)
_NVFP4 = Kind(jnp.float4_e2m1fn, 16, scales=jnp.float8_e4m3fn)
_KINDS = (
    Kind(jnp.int8),
    Kind(jnp.int4, 128),
    Kind(jnp.int4, 128, True),
    Kind(jnp.float8_e4m3fn),
    _MXFP4,
    _NVFP4,
    *(Kind(codes, x=codes) for codes in (jnp.float8_e4m3fn, jnp.int8)),
    Kind(jnp.float8_e4m3fn, 128),
    Kind(jnp.int4, 32),
)
"""Weights that are checked. AWQ and GPTQ have int4 in groups of 128 with zeros."""

_FIRST = 8
"""Number of weights that are compiled unless all are asked for."""

QUANTIZED = tuple(
    Weights(model, 0, columns, depth, *kind)
    for model, columns, depth in (
        ("Llama-3.1-8B", 14336, 4096),
        ("Llama-3.1-8B", 4096, 14336),
        ("Qwen3-0.6B", 1024, 3072),
    )
    for kind in _KINDS
)
_TIGHT = tuple(
    (Weights("Qwen3-0.6B", 0, 1024, 3072, *kind), tokens)
    for kind, tokens in (
        (Kind(jnp.int4, 32), 192),
        (Kind(jnp.int4, 128), 192),
        (Kind(jnp.int4, 128, True), 192),
        (Kind(jnp.float8_e4m3fn, 128), 192),
        (_MXFP4, 64),
        (_NVFP4, 64),
    )
)
"""Weights and tokens of kernels for TPUs that spilled by far on v6e or v7x; K is short, and so is their rest."""

GPT_OSS = Weights("gpt-oss-20b", 32, 2880, 2880, *_MXFP4)
"""Experts whose K is no multiple of 128."""

GROUPED = tuple(
    Weights(model, experts, columns, depth, *kind)
    for model, experts, columns, depth in (
        ("Mixtral-8x7B", 8, 14336, 4096),
        ("Qwen3-30B-A3B", 128, 768, 2048),
        ("DeepSeek-V3", 256, 2048, 7168),
    )
    for kind in (Kind(jnp.bfloat16), *_KINDS)
)


def matmul_cases(platform: str, everything: bool) -> list[Case]:
    """Both matmuls with each backend, of each kind of weight the first shape or all."""
    return [
        case for backend in _BACKENDS[platform] for make in (_quantized, _grouped) for case in make(backend, everything)
    ]


def _quantized(backend: str, everything: bool) -> list[Case]:
    def multiply(x: jax.Array, weight: jax.Array, scales: jax.Array, zeros: jax.Array | None = None) -> jax.Array:
        return quantized_matmul(x, weight, scales, zeros=zeros, backend=backend)

    few = [(w, 64) for w in QUANTIZED[:_FIRST]] + (list(_TIGHT) if backend == "mosaic_tpu" else [])
    wanted = [(w, t) for w in QUANTIZED for t in (8, 64, 192, 2048)] if everything else few
    return [
        _matmul("quantized_matmul", backend, multiply, weights, tokens, weights.sides) for weights, tokens in wanted
    ]


def _grouped(backend: str, everything: bool) -> list[Case]:
    def multiply(
        x: jax.Array,
        weight: jax.Array,
        sizes: jax.Array,
        scales: jax.Array | None = None,
        zeros: jax.Array | None = None,
    ) -> jax.Array:
        factored = scales is not None and scales.dtype == jnp.float8_e4m3fn  # NVFP4's sums have a factor each
        out = jnp.dtype(jnp.float32) if factored else None
        return grouped_matmul(x, weight, sizes, scales=scales, zeros=zeros, out_dtype=out, backend=backend)

    first = (*GROUPED[: _FIRST + 1], GPT_OSS)
    wanted = [(w, t) for w in (*GROUPED, GPT_OSS) for t in (64, 4096)] if everything else [(w, 64) for w in first]
    return [
        _matmul(
            "grouped_matmul",
            backend,
            multiply,
            weights,
            tokens,
            [Argument((weights.experts,), jnp.int32), *weights.sides],
        )
        for weights, tokens in wanted
    ]


def _matmul(name: str, backend: str, function: Any, weights: Weights, tokens: int, others: list[Argument]) -> Case:
    x = Argument((tokens, weights.depth), weights.x)
    arguments = (x, Argument(weights.dims, weights.kind), *others)
    return Case(
        f"{name} {backend}",
        f"{weights}, {tokens} rows",
        partial(lower_function, function, arguments, ()),
        kept_weights([(weights.model, weights.dims, weights.kind)]),
        cannot=unavailable(backend) or "",
        wgmma="mosaic_gpu" if backend == "mosaic_gpu" else "",
    )
