"""All cases of a form: each with every backend that is made for the device, and with peers, in turns."""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxinfer_kernels.attention import BACKENDS as ATTENTION_BACKENDS
from jaxinfer_kernels.matmul_backends import BACKENDS as MATMUL_BACKENDS

from benchmarks.device.ceilings import matmul_tflops, memory_rates
from benchmarks.device.counts import Work
from benchmarks.kernel_bench.attention import attention_chain, layers_for, layout_of, runnable
from benchmarks.kernel_bench.cases import AttentionCase, Case, MatmulCase, WriteCase
from benchmarks.kernel_bench.counts import work_of
from benchmarks.kernel_bench.cudnn_peer import cudnn_peers
from benchmarks.kernel_bench.forms import BenchForm
from benchmarks.kernel_bench.kv_write import WRITERS, kv_write_chain
from benchmarks.kernel_bench.matmuls import matmul_chain
from benchmarks.kernel_bench.peers import Peers
from benchmarks.kernel_bench.timing import Ceilings, figures, time_in_turns, with_shares
from benchmarks.kernel_bench.torch_peer import torch_peers
from benchmarks.kernel_bench.transformers_peer import transformers_peers
from jaxinfer.runner.platform.values import default_block_size


class Bench(NamedTuple):
    """One run on one device. backends: only these, None for all that the device runs."""

    form: BenchForm
    platform: str
    page_size: int
    ceilings: Ceilings
    backends: tuple[str, ...] | None = None

    @property
    def ceilings_shown(self) -> dict[str, Any]:
        """Ceilings as they are written to the results."""
        copied, multiplied = round(self.ceilings.bytes / 1e9, 1), round(self.ceilings.flops / 1e12, 4)
        return {"copy_gb_per_s": copied, "matmul_tflops": multiplied, "dtype": self.form.dtype}

    @property
    def itemsize(self) -> int:
        """Bytes of an activation and of a value in a page."""
        return jnp.dtype(self.form.dtype).itemsize

    def calls(self, work: Work) -> int:
        """Calls a dispatch, so that its start is a small part of it."""
        wanted = self.form.target_seconds / self.ceilings.seconds(work)
        return max(1, min(round(wanted), self.form.most_calls))


def make_bench(form: BenchForm, backends: tuple[str, ...] | None = None) -> Bench:
    """A bench on this process's device, of which it measures first what it copies and multiplies."""
    return Bench(form, jax.default_backend(), default_block_size(), _ceilings(form), backends)


def measured_again(bench: Bench, rows: list[dict[str, Any]]) -> tuple[Bench, list[dict[str, Any]]]:
    """The bench with its ceilings measured a second time, of which the higher count, and the rows' shares of those.

    Clocks rise, and a shared machine is not as busy at all times.
    """
    ceilings = Ceilings(*map(max, bench.ceilings, _ceilings(bench.form)))
    return bench._replace(ceilings=ceilings), [with_shares(row, ceilings) for row in rows]


def _ceilings(form: BenchForm) -> Ceilings:
    dtype = jnp.dtype(form.dtype)
    tflops = max(matmul_tflops(size, dtype) for size in form.matmul_sizes)
    return Ceilings(memory_rates(form.copy_bytes)["copy_gb_per_s"] * 1e9, tflops * 1e12)


def run_cases(
    bench: Bench, cases: Sequence[Case], deadline: float
) -> Iterator[tuple[list[dict[str, Any]], dict[str, str]]]:
    """After each case all rows so far, and why cases and backends were left out, by name. No case begins after
    `deadline`, by time.time."""
    rows: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for case in cases:
        layers = _layers(bench, case)
        if time.time() > deadline:
            left_out[case.name] = "no time was left"
        elif layers == 0:
            left_out[case.name] = f"its pages take more than {bench.form.most_bytes >> 20} MiB"
        else:
            found, absent = _run_case(bench, case, layers)
            rows, left_out = rows + found, left_out | absent
        yield rows, left_out


def attention_backends(bench: Bench) -> tuple[str, ...]:
    """Return the attention backends that are timed."""
    return _backends(bench, tuple(ATTENTION_BACKENDS))


def _run_case(bench: Bench, case: Case, layers: int) -> tuple[list[dict[str, Any]], dict[str, str]]:
    work = work_of(case, bench.itemsize)
    calls = bench.calls(work)
    makers, left_out = _timed(bench, case, layers, calls)
    timed = time_in_turns(makers, bench.form.runs, bench.form.case_seconds)
    about = {**_about(case), "layers": layers, "calls_a_dispatch": calls}
    rows = [
        {**about, "backend": name, **({"error": one} if isinstance(one, str) else figures(one, work))}
        for name, one in timed.items()
    ]
    return [with_shares(row, bench.ceilings) for row in rows], left_out


def _layers(bench: Bench, case: Case) -> int:
    if isinstance(case, MatmulCase):
        return 1
    return layers_for(case, bench.form, bench.page_size, bench.itemsize)


def _timed(bench: Bench, case: Case, layers: int, calls: int) -> Peers:
    """Our backends, then others'."""
    match case:
        case MatmulCase():
            names = _backends(bench, MATMUL_BACKENDS)
            return Peers({name: partial(matmul_chain, case, name, calls, bench.form.dtype) for name in names}, {})
        case WriteCase():
            return _writers(bench, case, layers, calls)
        case AttentionCase():
            return _attention(bench, case, layers, calls)


def _writers(bench: Bench, case: WriteCase, layers: int, calls: int) -> Peers:
    names, sizes = _backends(bench, ("xla", *WRITERS)), (bench.page_size, layers, calls)
    layout = layout_of(bench.platform, case.model)
    left_out = {
        f"{name} for kv_write": f"it needs a {device}, and JAX runs on {bench.platform}"
        for name, device in WRITERS.items()
        if name not in names and bench.backends is None
    }
    return Peers({name: partial(kv_write_chain, case, name, layout, *sizes) for name in names}, left_out)


def _attention(bench: Bench, case: AttentionCase, layers: int, calls: int) -> Peers:
    """Return the peers of an attention case. Backends of ours must read its layout, unless asked for by name."""
    layout, dtype = layout_of(bench.platform, case.model), bench.form.dtype
    names = [name for name in attention_backends(bench) if bench.backends or layout in ATTENTION_BACKENDS[name]]
    sizes = (bench.page_size, layers, calls, dtype)
    found = [
        Peers({name: partial(attention_chain, case, name, layout, *sizes) for name in names}, {}),
        torch_peers(case, bench.platform, layers, calls, dtype),
        cudnn_peers(case, bench.platform, *sizes),
        transformers_peers(case, bench.platform, layers, calls, dtype),
    ]
    return Peers(*({key: one for each in side for key, one in each.items()} for side in zip(*found, strict=True)))


def _backends(bench: Bench, known: tuple[str, ...]) -> tuple[str, ...]:
    return runnable(known, bench.platform) if bench.backends is None else bench.backends


def _about(case: Case) -> dict[str, Any]:
    about = {"case": case.name, "kind": case.kind}
    match case:
        case MatmulCase():
            return {**about, "model": case.model, "tokens": case.tokens}
        case WriteCase():
            return {**about, "model": case.model.name, "tokens": case.tokens, "pages": case.dtype}
    return {**about, "model": case.model.name, "rows": case.rows, "context": case.context, "new": case.new}
