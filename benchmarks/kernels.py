"""Every kernel with every backend that is made for this device, in the shapes of models that people serve.

Bytes and FLOPs are counted from shapes (the least a kernel must move and multiply), and rates are shares of what
the same process saw the device copy and multiply. A dispatch chains calls, each on what the one before wrote: a loop
over layers of one donated page array, with more layers than a cache holds, so neither dispatch nor a warm cache is
measured. Backends of a case run in turns. What is not right is not timed. Beside them stand others, where they are
installed: torch's scaled_dot_product_attention over keys and values gathered beforehand, which writes none, and on a
GPU cuDNN's attention, which writes none either, and transformers' paged attention. At the end: where ours is ahead,
and where it is not.

    python benchmarks/kernels.py [--raggedness] [--json FILE] [--plot FILE.svg]

--raggedness: does time follow the pages in use, and does one long row make the others long?
"""

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax

from benchmarks.device.context import hardware
from benchmarks.device.forms import form_name
from benchmarks.kernel_bench.bench import Bench, attention_backends, make_bench, measured_again, run_cases
from benchmarks.kernel_bench.cases import Case
from benchmarks.kernel_bench.forms import FORMS
from benchmarks.kernel_bench.raggedness import beside_long, follow_pages
from benchmarks.kernel_bench.roofline import draw_roofline
from benchmarks.kernel_bench.table import HEADING, beside_line, headline, line_lines, row_line
from benchmarks.kernel_bench.verdict import verdict, verdict_lines
from benchmarks.report import provenance, write_json
from jaxinfer.runner.platform.values import device_memory

_PACKAGES = ("torch", "jax-cuda13-plugin", "libtpu")


def main() -> None:
    asked = _arguments()
    backend = jax.default_backend()
    if asked.form not in (None, "cpu", "tiny") and backend == "cpu":
        sys.exit(f"--form {asked.form}: JAX finds no GPU or TPU here, its backend is cpu; --form cpu has smaller cases")
    form = FORMS[asked.form or form_name(backend, device_memory())]
    form = replace(form, dtype=asked.dtype or form.dtype, seconds=asked.seconds or form.seconds)
    where = {**provenance(packages=_PACKAGES), "hardware": hardware(), "load_average_before": os.getloadavg()}
    bench = make_bench(form, asked.backends)
    result: dict[str, Any] = {"form": form.name, "ceilings": bench.ceilings_shown, "page_size": bench.page_size}
    print(", ".join(f"{name} {value}" for name, value in bench.ceilings_shown.items()), flush=True)
    for found in chain(_grid(bench, asked), _ragged(bench, asked)):
        result |= found
        write_json(asked.json, result, {**where, "load_average_after": os.getloadavg()})
    bench, rows = measured_again(bench, result.get("rows", []))
    result |= {"rows": rows, "ceilings": bench.ceilings_shown}
    result |= verdict(rows, [] if asked.no_grid else _cases(bench, asked), bench.platform)
    write_json(asked.json, result, {**where, "load_average_after": os.getloadavg()})
    print(", ".join(f"{name} {value}" for name, value in bench.ceilings_shown.items()), flush=True)
    if asked.plot and rows:
        device = where["processor"] if bench.platform == "cpu" else jax.devices()[0].device_kind
        title = f"{device}, {form.dtype}, jax {jax.__version__}"
        asked.plot.write_text(draw_roofline(rows, bench.ceilings.bytes, bench.ceilings.flops, title))
    for line in verdict_lines(result):
        print(line)
    print(headline(result))


def _cases(bench: Bench, asked: argparse.Namespace) -> list[Case]:
    return [case for case in bench.form.cases if re.search(asked.cases, case.name)]


def _grid(bench: Bench, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if asked.no_grid:
        return
    cases = _cases(bench, asked)
    print(HEADING)
    shown, left_out = 0, {}
    for rows, left_out in run_cases(bench, cases, time.time() + bench.form.seconds):
        for row in rows[shown:]:
            print(row_line(row), flush=True)
        shown = len(rows)
        yield {"rows": rows, "left_out": left_out}
    for name, reason in left_out.items():
        print(f"left out: {name}: {reason}")


def _ragged(bench: Bench, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if not asked.raggedness:
        return
    lines, beside = [], []
    for backend in attention_backends(bench):
        for line in follow_pages(bench, backend):
            lines.append(line)
            print("\n".join(line_lines(line)), flush=True)
        beside.append(beside_long(bench, backend))
        print(beside_line(beside[-1]), flush=True)
        yield {"raggedness": {"time_against_pages": lines, "one_long_row": beside}}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--form", choices=list(FORMS), help="cases and sizes; by default the device's")
    parser.add_argument("--cases", default="", metavar="REGEX", help="only cases whose name it matches")
    parser.add_argument(
        "--backends", type=lambda text: tuple(text.split(",")), metavar="a,b", help="these, whatever the device"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="of activations and pages")
    parser.add_argument("--seconds", type=float, help="no case begins later")
    parser.add_argument("--raggedness", action="store_true", help="also time against pages in use")
    parser.add_argument("--no-grid", action="store_true", help="no cases")
    parser.add_argument("--json", metavar="FILE", help="write everything there, as it is found")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a roofline as SVG")
    return parser.parse_args()


if __name__ == "__main__":
    main()
