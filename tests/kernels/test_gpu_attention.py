"""The `mosaic_gpu` backend in the Mosaic GPU interpreter against a float64 oracle."""

import dataclasses
import os
from collections.abc import Iterable
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxinfer_kernels import (
    GpuBlocks,
    RaggedRows,
    gpu_blocks,
    ragged_paged_attention,
    unavailable,
)

from tests.draws import fixed_and_random_cases

from .batches import MIXES, Shape, make_batch
from .oracle import attend, write

# Each warpgroup of the interpreter takes one of XLA's threads while it waits: with two of them it waits for ever.
os.environ.setdefault("NPROC", "8")

REASON = unavailable("mosaic_gpu")
needs_gpu_interpreter = pytest.mark.skipif(REASON is not None, reason=REASON or "")
TOLERANCE = {jnp.float16: 1e-3, jnp.bfloat16: 1e-2}

SMALL = GpuBlocks(64, 2, 64, 2, 1, programs=4, least=1)
TWO = dataclasses.replace(SMALL, long_keys=128, warpgroups=2)
PLAIN = dataclasses.replace(SMALL, in_place=False)


class Kind(NamedTuple):
    """What a program is compiled for; batches of one kind share it."""

    shape: Shape = Shape(4, 2, 64, page=16)
    rows: int = 7
    tokens: int = 112
    longest: int = 200
    dtype: Any = jnp.float16
    short_len: int = 1
    window: int | None = None
    soft_cap: float | None = None
    sinks: tuple[float, ...] | None = None
    sizes: GpuBlocks | None = SMALL
    races: bool = False

    @property
    def options(self) -> dict[str, Any]:
        sinks = None if self.sinks is None else np.asarray(self.sinks, np.float32)
        return {"scale": self.shape.dim**-0.5, "window": self.window, "soft_cap": self.soft_cap, "sinks": sinks}


def interpreted(detect_races: bool = False) -> Any:
    from .gpu_interpreter import gpu_interpreter, on_gpu  # not there before jax 0.11

    if detect_races and on_gpu():
        pytest.skip("races are seen in the interpreter alone")
    return gpu_interpreter(detect_races)


@cache
def program_of(kind: Kind) -> Any:
    """One compiled call of layer 1."""

    def call(q, k, v, pages, rows, short_rows):
        return ragged_paged_attention(
            q, k, v, pages, 1, rows, short_rows=short_rows, short_len=kind.short_len, backend="mosaic_gpu",
            block_sizes=kind.sizes, **kind.options,
        )  # fmt: skip

    return jax.jit(call)


def check(kind: Kind, lengths: list[tuple[int, int]], seed: int = 0) -> list[str]:
    """Output and pages are the oracle's, from inputs rounded to the dtype. Returns the reports of races."""
    lengths = lengths + [(0, 0)] * (kind.rows - len(lengths))
    batch = make_batch(
        np.random.default_rng(seed), lengths, kind.shape, layer=1, short_len=kind.short_len, tokens=kind.tokens,
        window=kind.window, longest=kind.longest,
    )  # fmt: skip
    q, k, v, pages = (np.asarray(jnp.asarray(x, kind.dtype), np.float64) for x in batch[:4])
    pages = write(pages, 1, k, v, batch.rows)
    want = attend(q, pages, 1, batch.rows, value_dim=v.shape[-1], **kind.options)
    with interpreted(kind.races) as reports:
        arrays = [jnp.asarray(x, kind.dtype) for x in batch[:4]]
        out, kept = jax.block_until_ready(program_of(kind)(*arrays, batch.rows, batch.short_rows))
    error = np.abs(np.asarray(out, np.float64) - want).max()
    assert error <= TOLERANCE[kind.dtype] * max(1.0, np.abs(want).max())
    np.testing.assert_array_equal(np.asarray(kept, np.float32)[:, :, 1:], pages[:, :, 1:].astype(np.float32))
    return [report for report in reports if not _of_padding(report)]


def _of_padding(report: str) -> bool:
    """Tokens of padding are all written to one place (test_gpu_kv_write.py)."""
    return report.count("kv_write.py") == 2


@needs_gpu_interpreter
@pytest.mark.parametrize("mix", MIXES)
def test_equals_oracle(mix: str):
    check(Kind(short_len=3 if mix == "short_of_three" else 1), MIXES[mix])


@needs_gpu_interpreter
def test_bfloat16():
    check(Kind(dtype=jnp.bfloat16), MIXES["mixed"])


@needs_gpu_interpreter
@pytest.mark.parametrize("mix", ["mixed", "one_long_among_short", "prefill"])
def test_two_warpgroups_and_one_that_copies(mix: str):
    check(Kind(sizes=TWO), MIXES[mix])


@needs_gpu_interpreter
def test_short_rows_that_take_several_tiles():
    """20 tokens of 4 query heads are 80 rows, and a tile has 64."""
    check(Kind(Shape(8, 2, 64, 16), short_len=20), [(2, 20), (14, 17), (15, 2), (31, 16), (6, 21)])


@needs_gpu_interpreter
@pytest.mark.parametrize(
    "kind",
    [
        Kind(window=6),
        Kind(window=1),
        Kind(window=33, soft_cap=2.0, sizes=TWO),
        Kind(window=20, sinks=(0.5, -1.0, 3.0, 0.0)),
    ],
    ids=["window", "window_of_one", "soft_cap", "sinks"],
)
def test_options_equal_oracle(kind: Kind):
    check(kind, MIXES["mixed"], seed=1)


def heads(q_heads: int, kv_heads: int, dim: int, value_dim: int, page: int) -> Kind:
    shape = Shape(q_heads, kv_heads, dim, page, 2, value_dim)
    sizes = dataclasses.replace(gpu_blocks(dim, value_dim), programs=4, least=1)
    return Kind(shape, 4, page + 9, page + 8, sizes=sizes)


@needs_gpu_interpreter
@pytest.mark.parametrize(
    "kind",
    [
        heads(14, 2, 64, 64, 32),
        heads(3, 1, 80, 80, 16),
        heads(4, 2, 192, 128, 32),
        heads(5, 1, 256, 256, 256),
        pytest.param(heads(2, 2, 64, 64, 16), marks=pytest.mark.long),
        pytest.param(heads(8, 1, 96, 96, 64), marks=pytest.mark.long),
        pytest.param(heads(4, 2, 128, 128, 128), marks=pytest.mark.long),
        pytest.param(heads(16, 1, 128, 128, 16), marks=pytest.mark.long),
    ],
    ids=lambda kind: "-".join(map(str, kind.shape)),
)
def test_heads_dims_and_pages(kind: Kind):
    """With tiles and stages of the rule, but fewer programs: each takes the interpreter some time."""
    page = kind.shape.page
    check(kind, [(page - 1, 1), (page, 1), (3, 1), (2, page + 3)])


@needs_gpu_interpreter
@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.int8])
def test_quantised_pages(dtype):
    batch = make_batch(np.random.default_rng(4), [(0, 1), (0, 35), (0, 13)], Shape(4, 2, 64, 32), layer=0, short_len=1)
    scales = (0.03, 0.04) if dtype == jnp.int8 else (0.01, 0.02)
    q, k, v = (jnp.asarray(x, jnp.float16) for x in batch[:3])

    def rounded(x, scale):
        scaled = x.astype(jnp.float32) / scale
        return np.asarray((jnp.round(scaled) if dtype == jnp.int8 else scaled).astype(dtype), np.float64) * scale

    k_kept, v_kept = map(rounded, (k, v), scales)
    written = write(np.zeros(batch.kv_pages.shape), 0, k_kept, v_kept, batch.rows)
    want = attend(q, written, 0, batch.rows, scale=0.2)
    pages = jnp.full(batch.kv_pages.shape, 99 if dtype == jnp.int8 else jnp.nan).astype(dtype)

    def call(q, k, v, pages, short_rows):
        return ragged_paged_attention(
            q, k, v, pages, 0, batch.rows, short_rows=short_rows, short_len=1, scale=0.2, kv_scale=scales,
            backend="mosaic_gpu", block_sizes=SMALL,
        )  # fmt: skip

    with interpreted():
        out, _ = jax.block_until_ready(jax.jit(call)(q, k, v, pages, batch.short_rows))
    from .gpu_interpreter import on_gpu

    # 4.3e-3 was seen on an H100.
    np.testing.assert_allclose(np.asarray(out, np.float64), want, atol=5e-3 if on_gpu() else 2e-3)


RANDOM = (
    Kind(Shape(6, 3, 64, 16), 6, 64, 150, short_len=2, window=40, sizes=TWO),
    Kind(Shape(7, 1, 128, 32), 6, 64, 150, jnp.bfloat16, short_len=4),
    Kind(Shape(2, 2, 80, 64), 6, 64, 150, sinks=(1.0, -1.0), soft_cap=1.5),
    Kind(Shape(8, 2, 64, 16), 6, 64, 150, short_len=1, window=9, sizes=dataclasses.replace(SMALL, programs=16)),
)


@needs_gpu_interpreter
@pytest.mark.parametrize("seeds", fixed_and_random_cases(8))
def test_random_batches(seeds: Iterable[int]):
    for seed in seeds:
        check_random_batch(seed)


def check_random_batch(seed: int):
    rng, kind = np.random.default_rng(100 + seed), RANDOM[seed % len(RANDOM)]
    counts = [int(rng.choice([0, 1, 1, 2, 3, 4, 7, 18, 40])) for _ in range(kind.rows)]
    while sum(counts) > kind.tokens:
        counts[int(np.argmax(counts))] = 1
    check(kind, [(int(rng.integers(0, 110)), count) for count in counts], seed)


@needs_gpu_interpreter
def test_the_form_for_the_interpreter_of_pallas():
    check(Kind(sizes=PLAIN), MIXES["mixed"])


@needs_gpu_interpreter
def test_nothing_is_interpreted_on_a_gpu(monkeypatch: pytest.MonkeyPatch):
    """There these tests run the kernels themselves: the CPU that is here refuses them."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(ValueError, match="Only interpret mode is supported on CPU"):
        check(Kind(), MIXES["decode"])


EXPLAINED: list[str] = []
"""Reports of races that are known to be none: there are none to explain."""


@needs_gpu_interpreter
@pytest.mark.parametrize("sizes", [SMALL, TWO], ids=["one", "two"])
def test_no_races(sizes: GpuBlocks):
    assert check(Kind(window=20, sizes=sizes, races=True), MIXES["mixed"]) == EXPLAINED


def without(monkeypatch: pytest.MonkeyPatch, name: str, wait: str) -> None:
    """The kernel with one kind of wait taken out: of a barrier of Memory, or `commit_smem`."""
    from jax.experimental.pallas import mosaic_gpu as plgpu
    from jaxinfer_kernels.gpu import attention_kernel, page_copies

    changed: Any = SimpleNamespace(**{key: getattr(plgpu, key) for key in dir(plgpu) if not key.startswith("__")})
    program = attention_kernel.attend_program
    if wait == "commit":
        changed.commit_smem = lambda: None
    names: dict[int, str] = {}

    def barrier_wait(barrier: Any) -> None:
        if names.get(id(getattr(barrier, "ref", barrier))) != name:
            plgpu.barrier_wait(barrier)

    def attend_program(form: Any, refs: Any, memory: Any) -> None:
        names.update({id(getattr(ref, "ref", ref)): field for field, ref in memory._asdict().items()})
        program(form, refs, memory)

    changed.barrier_wait = barrier_wait
    monkeypatch.setattr(attention_kernel, "attend_program", attend_program)
    for module in (attention_kernel, page_copies):
        monkeypatch.setattr(module, "plgpu", changed)


@needs_gpu_interpreter
@pytest.mark.parametrize(
    ("name", "sizes"),
    [("q_here", SMALL), ("k_here", SMALL), ("v_here", SMALL), ("commit", SMALL), ("k_here", TWO), ("v_clean", TWO),
     ("k_done", TWO), ("v_done", TWO), ("nothing", SMALL), ("nothing", TWO)],
)  # fmt: skip
def test_a_removed_wait_is_found(name: str, sizes: GpuBlocks, monkeypatch: pytest.MonkeyPatch):
    """Without one of its waits the kernel is told to race; with all of them, run in the same way, it is not."""
    without(monkeypatch, name, name)
    sizes = dataclasses.replace(sizes, long_keys=64, programs=1)  # one program with more tiles than stages
    kind = Kind(rows=2, tokens=24, longest=300, window=250, sizes=sizes, races=True)
    program_of.cache_clear()
    try:
        reports = check(kind, [(100, 1), (270, 20)])
    except (AssertionError, jax.errors.JaxRuntimeError) as error:
        reports = [str(error)]
    finally:
        program_of.cache_clear()
    assert bool(reports) == (name != "nothing")


def test_shards_of_kv_heads_trace():
    """Inside shard_map each device has its own heads; nothing but tracing is asked of this test."""
    if REASON:
        pytest.skip(REASON)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("tensor",))
    spec = jax.sharding.PartitionSpec
    rows, heads = spec(), spec(None, "tensor")
    pages = spec(None, None, None, None, "tensor")

    def call(q, k, v, kv_pages, table, counts):
        return ragged_paged_attention(
            q, k, v, kv_pages, 0, RaggedRows(table, counts, counts, counts), short_rows=4, short_len=1, scale=1.0,
            backend="mosaic_gpu",
        )  # fmt: skip

    sharded = jax.shard_map(
        call, mesh=mesh, in_specs=(heads, heads, heads, pages, rows, rows), out_specs=(heads, pages), check_vma=False
    )
    shape = jax.ShapeDtypeStruct
    q, k = shape((4, 8, 64), jnp.bfloat16), shape((4, 2, 64), jnp.bfloat16)
    kv_pages = shape((1, 2, 8, 16, 2, 64), jnp.bfloat16)
    out, kept = jax.eval_shape(sharded, q, k, k, kv_pages, shape((4, 4), jnp.int32), shape((4,), jnp.int32))
    assert (out.shape, kept.shape) == (q.shape, kv_pages.shape)


@needs_gpu_interpreter
def test_too_many_stages_are_refused():
    sizes = dataclasses.replace(SMALL, stages=16)
    with pytest.raises(ValueError, match="16 stages of 64 keys take"):
        check(Kind(sizes=sizes), MIXES["decode"])
