"""All cases of a form: each with every backend that is made for the device, and with peers, in turns."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxinfer_kernels.attention import BACKENDS as ATTENTION_BACKENDS
from jaxinfer_kernels.matmul_backends import BACKENDS as MATMUL_BACKENDS

from benchmarks.gpu.ceilings import matmul_tflops, memory_rates
from benchmarks.gpu.counts import Work
from benchmarks.kernel_bench.attention import attention_chain, layers_for, layout_of, runnable
from benchmarks.kernel_bench.cases import AttentionCase, Case, MatmulCase
from benchmarks.kernel_bench.counts import work_of
from benchmarks.kernel_bench.forms import BenchForm
from benchmarks.kernel_bench.matmuls import matmul_chain
from benchmarks.kernel_bench.timing import Ceilings, Chain, figures, time_in_turns, with_shares
from benchmarks.kernel_bench.torch_peer import torch_makers
from jaxinfer.runner.platform import default_page_size

Makers = dict[str, Callable[[], Chain]]


class Bench(NamedTuple):
    """One run on one device. backends: only these, None for all that the device runs."""

    form: BenchForm
    platform: str
    page_size: int
    ceilings: Ceilings
    backends: tuple[str, ...] | None = None

    @property
    def ceilings_shown(self) -> dict[str, Any]:
        """As they are written down."""
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
    return Bench(form, jax.default_backend(), default_page_size(), _ceilings(form), backends)


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
    """After each case all rows so far, and why cases were left out. No case begins after `deadline`, by time.time."""
    rows: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for case in cases:
        layers = _layers(bench, case)
        if time.time() > deadline:
            left_out[case.name] = "no time was left"
        elif layers == 0:
            left_out[case.name] = f"its pages take more than {bench.form.most_bytes >> 20} MiB"
        else:
            rows += _run_case(bench, case, layers)
        yield rows, left_out


def attention_backends(bench: Bench) -> tuple[str, ...]:
    """Those that are timed."""
    return _backends(bench, tuple(ATTENTION_BACKENDS))


def _run_case(bench: Bench, case: Case, layers: int) -> list[dict[str, Any]]:
    work = work_of(case, bench.itemsize)
    calls = bench.calls(work)
    timed = time_in_turns(_makers(bench, case, layers, calls), bench.form.runs, bench.form.case_seconds)
    about = {**_about(case), "layers": layers, "calls_a_dispatch": calls}
    rows = [
        {**about, "backend": name, **({"error": one} if isinstance(one, str) else figures(one, work))}
        for name, one in timed.items()
    ]
    return [with_shares(row, bench.ceilings) for row in rows]


def _layers(bench: Bench, case: Case) -> int:
    if isinstance(case, MatmulCase):
        return 1
    return layers_for(case, bench.form, bench.page_size, bench.itemsize)


def _makers(bench: Bench, case: Case, layers: int, calls: int) -> Makers:
    dtype = bench.form.dtype

    def matmul(case: MatmulCase, name: str) -> Callable[[], Chain]:
        return lambda: matmul_chain(case, name, calls, dtype)

    def attend(case: AttentionCase, name: str) -> Callable[[], Chain]:
        layout = layout_of(bench.platform, case.model)
        return lambda: attention_chain(case, name, layout, bench.page_size, layers, calls, dtype)

    if isinstance(case, MatmulCase):
        return {name: matmul(case, name) for name in _backends(bench, MATMUL_BACKENDS)}
    makers: Makers = {name: attend(case, name) for name in attention_backends(bench)}
    if bench.platform == "cpu" and dtype == "float32":
        makers |= torch_makers(case, layers, calls)
    return makers


def _backends(bench: Bench, known: tuple[str, ...]) -> tuple[str, ...]:
    return runnable(known, bench.platform) if bench.backends is None else bench.backends


def _about(case: Case) -> dict[str, Any]:
    about = {"case": case.name, "kind": case.kind}
    if isinstance(case, MatmulCase):
        return {**about, "model": case.model, "tokens": case.tokens}
    return {**about, "model": case.model.name, "rows": case.rows, "context": case.context, "new": case.new}
