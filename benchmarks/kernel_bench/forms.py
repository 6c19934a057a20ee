"""Forms of the bench: which cases run on a GPU, on TPUs, on a CPU and in tests, and how they are timed."""

from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from benchmarks.device.forms import FormName
from benchmarks.kernel_bench.cases import (
    DEEPSEEK,
    DEEPSEEK_LATENT,
    GEMMA,
    LLAMA_8B,
    LLAMA_70B,
    MODELS,
    QWEN3,
    Case,
    Codes,
    MatmulCase,
    ModelShape,
    WriteCase,
    decode,
    mixed,
    prefill,
    verify,
)


@dataclass(frozen=True)
class BenchForm:
    """dtype: of activations and pages. cases: in the order of their worth. seconds: for all cases together.

    runs: timed dispatches of each backend of a case, fewer where they take more than case_seconds.
    target_seconds: what one dispatch would take at the device's roof; as many calls are chained in it, at most
    most_calls. cold_bytes: layers are added until one round over them reads so much, more than a cache holds.
    most_bytes: of the pages of one case; what needs more is left out.
    copy_bytes, matmul_sizes: of the ceilings.
    contexts: tokens a row of the raggedness figures, the last is the pool's size. apart: the long row and the short
    ones that are timed together and apart: (long context, short rows, short context).
    """

    name: FormName
    dtype: str
    cases: tuple[Case, ...]
    seconds: float
    runs: int
    case_seconds: float
    target_seconds: float
    most_calls: int
    cold_bytes: int
    most_bytes: int
    copy_bytes: int
    matmul_sizes: tuple[int, ...]
    contexts: tuple[int, ...]
    apart: tuple[int, int, int]
    ragged_model: ModelShape = QWEN3


WORTH_MOST: tuple[Case, ...] = (
    decode(LLAMA_8B, 32, 2048),
    decode(LLAMA_8B, 1, 32768),
    prefill(LLAMA_8B, 1, 8192),
    decode(LLAMA_8B, 256, 500),
    mixed(LLAMA_8B, 32, 2048),
    WriteCase(LLAMA_8B, 32, 1, "bfloat16"),
    decode(LLAMA_8B, 8, 500),
    decode(LLAMA_8B, 1, 500),
    prefill(LLAMA_8B, 4, 2048),
    verify(LLAMA_8B, 32, 2048),
    MatmulCase("Llama-3.1-8B", 32, 4096, 14336, weights="int8"),
    MatmulCase("Llama-3.1-8B", 32, 4096, 14336, weights="int4", group=128),
    MatmulCase("Llama-3.1-8B", 32, 4096, 14336, weights="e4m3"),
    MatmulCase("Llama-3.1-8B", 32, 4096, 14336, weights="e2m1", group=32),
    *(MatmulCase("Llama-3.1-8B", tokens, 4096, 14336, weights="e4m3", rounded=True) for tokens in (32, 2048)),
    MatmulCase("Qwen3-30B-A3B", 32, 2048, 768, weights="plain", experts=128, chosen=8),
    WriteCase(LLAMA_8B, 1, 2048, "bfloat16"),
    WriteCase(LLAMA_8B, 256, 1, "bfloat16"),
    WriteCase(LLAMA_8B, 1, 1, "bfloat16"),
    decode(LLAMA_8B, 256, 2048),
    *(WriteCase(LLAMA_8B, *size, "float8_e4m3fn") for size in ((32, 1), (1, 2048), (256, 1), (1, 1))),
)
"""Cases of one model; those that have goals come first."""


def _whole_grid() -> tuple[Case, ...]:
    """Short contexts and few rows first: what is ended early has seen every kind of case.

    DeepSeek's prompts go through keys and values of each head, everything else through what it keeps of a token.
    """
    sizes = sorted(product((1, 8, 32, 256), (128, 512, 2048, 8192, 32768)), key=lambda size: size[0] * size[1])
    attention = (
        make(model, rows, context)
        for rows, context in sizes
        for model in MODELS
        for make in (decode, verify, mixed)
        if model is not DEEPSEEK
    )
    prompts = (
        prefill(model, rows, context)
        for rows, context in sizes
        if rows <= 32
        for model in MODELS
        if model is not DEEPSEEK_LATENT
    )
    return tuple(dict.fromkeys((*WORTH_MOST, *_matmuls(), *prompts, *attention)))


_CODES: tuple[tuple[Codes, int | None], ...] = (
    *(("int8", None), ("int4", 128), ("e4m3", None)),
    *(("e2m1", 32), ("e2m1", 16)),
)
"""Type, and values that share a scale."""

_ROUNDED: tuple[Codes, ...] = ("e4m3", "int8")
"""Types of codes of both weights and rows."""

_OF_EXPERTS: tuple[Literal["plain", "e4m3"], ...] = ("plain", "e4m3")


def _matmuls() -> tuple[Case, ...]:
    plain = (
        MatmulCase("Llama-3.1-8B", tokens, 4096, 14336, *codes) for tokens in (1, 8, 32, 256, 2048) for codes in _CODES
    )
    rounded = (
        MatmulCase("Llama-3.1-8B", tokens, 4096, 14336, codes, rounded=True)
        for tokens in (1, 8, 32, 256, 2048)
        for codes in _ROUNDED
    )
    experts = (
        MatmulCase(*shape, weights=weights, experts=count, chosen=8)
        for tokens in (1, 32, 256, 2048)
        for weights in _OF_EXPERTS
        for shape, count in (
            (("Qwen3-30B-A3B", tokens, 2048, 768), 128),
            (("DeepSeek-V3/EP8", tokens, 7168, 2048), 32),
        )
    )
    mxfp4 = (
        MatmulCase("gpt-oss-20b", tokens, 2880, 2880, "e2m1", 32, experts=32, chosen=4) for tokens in (1, 32, 256, 2048)
    )
    return (*plain, *rounded, *experts, *mxfp4)


GPU = BenchForm(
    name="gpu",
    dtype="bfloat16",
    cases=_whole_grid(),
    seconds=480,
    runs=7,
    case_seconds=4,
    target_seconds=0.005,
    most_calls=64,
    cold_bytes=128 << 20,
    most_bytes=32 << 30,
    copy_bytes=2 << 30,
    matmul_sizes=(8192,),
    contexts=(1024, 2048, 4096, 8192, 16384, 32768),
    apart=(4096, 31, 64),
    ragged_model=LLAMA_8B,
)

_GB_80 = replace(GPU, most_bytes=16 << 30)
"""Pages of a case take at most a fifth of the device: they lie there once for each of two backends, and twice more for
a moment while they are made."""
_GB_32 = replace(_GB_80, most_bytes=6 << 30)
_GB_16 = replace(_GB_80, most_bytes=3 << 30, copy_bytes=1 << 30)

OF_MEMORY: tuple[BenchForm, ...] = (
    *(replace(_GB_80, name="gpu-80gb"), replace(_GB_32, name="gpu-32gb"), replace(_GB_16, name="gpu-16gb")),
    *(replace(_GB_80, name="tpu"), replace(_GB_32, name="tpu-32gb"), replace(_GB_16, name="tpu-16gb")),
)
"""The grid on devices with less memory than an H200."""

CPU = BenchForm(
    name="cpu",
    dtype="float32",
    cases=(
        decode(QWEN3, 8, 512),
        decode(QWEN3, 1, 512),
        decode(QWEN3, 32, 512),
        prefill(QWEN3, 1, 512),
        mixed(QWEN3, 8, 1024, 256),
        decode(QWEN3, 1, 32768),
        decode(QWEN3, 8, 4096),
        verify(QWEN3, 8, 2048),
        prefill(QWEN3, 1, 4096, 512),
        decode(LLAMA_8B, 8, 500),
        prefill(LLAMA_8B, 1, 512),
        decode(LLAMA_70B, 32, 2048),
        decode(GEMMA, 8, 4096),
        prefill(GEMMA, 1, 2048, 512),
        decode(DEEPSEEK_LATENT, 8, 1024),
        prefill(DEEPSEEK, 1, 512),
        MatmulCase("Qwen3-0.6B", 8, 1024, 3072, weights="int8"),
        MatmulCase("Qwen3-0.6B", 8, 1024, 3072, weights="int4", group=128),
        MatmulCase("Qwen3-0.6B", 8, 1024, 3072, weights="e4m3"),
        MatmulCase("Qwen3-0.6B", 8, 1024, 3072, weights="e2m1", group=32),
        MatmulCase("Qwen3-0.6B", 8, 1024, 3072, weights="e4m3", rounded=True),
        MatmulCase("Qwen3-30B-A3B/EP8", 32, 2048, 768, weights="plain", experts=16, chosen=1),
        decode(QWEN3, 256, 128),
    ),
    seconds=75,
    runs=9,
    case_seconds=6,
    target_seconds=0.015,
    most_calls=64,
    cold_bytes=96 << 20,
    most_bytes=640 << 20,
    copy_bytes=256 << 20,
    matmul_sizes=(1024, 2048),
    contexts=(1024, 2048, 4096, 8192, 16384, 32768),
    apart=(4096, 31, 64),
)

_SMALL = ModelShape("tiny", 4, 2, 8, 8)
_LATENT = ModelShape("tiny latent", 4, 1, 12, 8, latent=True)
_UNEQUAL = ModelShape("tiny unequal", 2, 2, 12, 8, window=24)

TINY = BenchForm(
    name="tiny",
    dtype="float32",
    cases=(
        decode(_SMALL, 3, 40),
        verify(_SMALL, 2, 40),
        mixed(_UNEQUAL, 2, 40, 20),
        prefill(_UNEQUAL, 1, 32),
        decode(_LATENT, 2, 40),
        WriteCase(_SMALL, 3, 1, "float32"),
        WriteCase(_SMALL, 1, 20, "float8_e4m3fn"),
        MatmulCase("tiny", 3, 32, 64, weights="int8"),
        MatmulCase("tiny", 3, 32, 64, weights="int4", group=16),
        MatmulCase("tiny", 3, 32, 64, weights="e4m3"),
        MatmulCase("tiny", 3, 32, 64, weights="e2m1", group=16),
        MatmulCase("tiny", 3, 32, 64, weights="e4m3", rounded=True),
        MatmulCase("tiny", 4, 32, 64, weights="e2m1", group=32, experts=4, chosen=2),
        MatmulCase("tiny", 4, 32, 48, weights="plain", experts=4, chosen=2),
        MatmulCase("tiny", 4, 32, 48, weights="e4m3", experts=4, chosen=2),
        MatmulCase("tiny", 4, 32, 48, weights="int8", experts=4, chosen=2, rounded=True),
    ),
    seconds=120,
    runs=2,
    case_seconds=60,
    target_seconds=1e-5,
    most_calls=3,
    cold_bytes=1,
    most_bytes=1 << 24,
    copy_bytes=1 << 20,
    matmul_sizes=(64,),
    contexts=(32, 64, 128),
    apart=(64, 3, 16),
    ragged_model=_SMALL,
)

SUITE_CASES: dict[str, tuple[Case, ...]] = {
    **{form.name: WORTH_MOST for form in (GPU, *OF_MEMORY)},
    "cpu": CPU.cases[:5],
    "tiny": TINY.cases,
}
"""Cases that `device_suite.py` runs, by form."""

FORMS: dict[str, BenchForm] = {form.name: form for form in (GPU, *OF_MEMORY, CPU, TINY)}
