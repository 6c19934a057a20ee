"""Kernels by themselves: the cases of `benchmarks/kernels.py` that are worth most, with every backend."""

import time

import jax

from benchmarks.device.context import Context
from benchmarks.kernel_bench.bench import make_bench, measured_again, run_cases
from benchmarks.kernel_bench.forms import FORMS, SUITE_CASES
from benchmarks.kernel_bench.roofline import draw_roofline
from benchmarks.kernel_bench.verdict import verdict

_LAST_CASE_SECONDS = 8
"""No case begins later than this before the end."""


def measure(context: Context) -> None:
    """Writes a roofline beside the result, too."""
    form = FORMS[context.form.name]
    bench = make_bench(form)
    context.save(ceilings=bench.ceilings_shown, page_size=bench.page_size)
    deadline = time.time() + min(context.seconds_left - _LAST_CASE_SECONDS, form.seconds)
    cases, rows = SUITE_CASES[form.name], []
    for rows, left_out in run_cases(bench, cases, deadline):
        context.save(kernels=rows, left_out=left_out, **verdict(rows, cases, bench.platform))
    bench, rows = measured_again(bench, rows)
    context.save(kernels=rows, ceilings=bench.ceilings_shown, **verdict(rows, cases, bench.platform))
    if any("us" in row for row in rows):
        title = f"{jax.devices()[0].device_kind}, {form.dtype}, jax {jax.__version__}"
        plot = draw_roofline(rows, bench.ceilings.bytes, bench.ceilings.flops, title)
        context.file.with_suffix(".svg").write_text(plot)
