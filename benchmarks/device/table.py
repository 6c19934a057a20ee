"""The short table at the end of a run, and its headline."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.kernel_bench.verdict import verdict_lines

_KERNELS_SHOWN = 6
Results = Mapping[str, Mapping[str, Any]]
"""Part to what it wrote."""


def lines(results: Results) -> Iterator[str]:
    """Yield the measurements, a line each; shares are of the rates at which the same run copied and multiplied."""
    ceilings = results.get("ceilings", {})
    copied, multiplied = ceilings.get("copy_gb_per_s"), ceilings.get("matmul_tflops")
    if copied:
        products = f"{ceilings.get('matmul_dtype')} products {multiplied} TFLOP/s"
        yield f"copy {copied} GB/s, read {ceilings['read_gb_per_s']} GB/s, {products}"
    for name, result in results.items():
        yield from _steps(name, result, copied, multiplied)
        yield from _drafts(name, result, copied)
        yield from _kernels(name, result)
        yield from _right(name, result)
        for kind in ("fewer", "serving"):
            if kind in result:
                yield _serving(name, result[kind])
        if "start" in result:
            start = result["start"]
            yield f"{name}: start {start['start_seconds']} s, compile cache {start['compile_cache']}"
        for kind, started in result.get("starts", {}).items():
            yield f"{name}: ready after {started['seconds']['total']} s, {kind}"
        for profile in result.get("profiles", ()):
            yield from _kernel_times(name, profile)
        for kind in ("overlap", "no_overlap"):
            if "idle_share_by_time" in result.get(kind, ()):
                yield _idle(kind, result["rows"], result[kind])


def headline(results: Results) -> str:
    """One line: the workload's output tokens a second, and the peers' where they were measured."""
    ours = results.get("serving", {}).get("serving")
    if ours is None:
        return "serving: not measured"
    text = f"serving: {ours['output_tokens_per_s']} output tokens/s, {ours['requests']} requests"
    for peer in ("transformers", "vllm"):
        theirs = results.get(peer, {}).get("serving")
        if theirs:
            bound = "" if theirs.get("complete", True) else "at least "
            text += f"; {peer} {bound}{theirs['output_tokens_per_s']}"
    return text


def share(value: float, ceiling: float | None) -> str:
    """`value` as a share of a ceiling, where that was measured."""
    return f"{100 * value / ceiling:.1f} %" if ceiling else "?"


def _steps(name: str, result: Mapping[str, Any], copied: float | None, multiplied: float | None) -> Iterator[str]:
    for row in result.get("steps", ()):
        size = f"{row['rows']} x {row['tokens_a_row']}"
        bandwidth = f"{row['gb_per_s']} GB/s ({share(row['gb_per_s'], copied)} of copy)"
        products = f"{row['tflops']} TFLOP/s ({share(row['tflops'], multiplied)} of matmul)"
        yield f"{name}: {row['kind']} {size}: {row['step_ms']} ms, {bandwidth if row['kind'] == 'decode' else products}"


def _kernel_times(name: str, profile: Mapping[str, Any]) -> Iterator[str]:
    size = f"{profile['kind']} {profile['rows']} x {profile['tokens_a_row']}"
    for kernel in profile["kernels"][:_KERNELS_SHOWN]:
        yield f"{name}: {size}: {kernel['us_a_step']} us, {kernel['a_step']} times: {kernel['name']}"


def _drafts(name: str, result: Mapping[str, Any], copied: float | None) -> Iterator[str]:
    for row in result.get("batches", ()):
        bandwidth = f"{row['gb_per_s']} GB/s ({share(row['gb_per_s'], copied)} of copy)"
        steps = f"a step {row['plain_ms']} ms, with drafts {row['drafting_ms']} ms, {bandwidth}"
        rates = f"{row['plain_tokens_per_s']} tokens/s, {row['drafting_tokens_per_s']} with drafts"
        yield f"{name}: {row['rows']} rows: {steps}; {rates} (x {row['speedup']}, {row['allowed']} allowed)"
    if "batches" in result:
        off = result["off_from"]
        yield f"{name}: drafts do not pay from {off} rows on" if off else f"{name}: drafts pay in every batch"


def _kernels(name: str, result: Mapping[str, Any]) -> Iterator[str]:
    """Shares are of what the part itself saw the device copy and multiply."""
    for row in result.get("kernels", ()):
        begin = f"{name}: {row['case']}, {row['backend']}"
        if "error" in row:
            yield f"{begin}: {row['error']}"
            continue
        bandwidth = f"{row['gb_per_s']} GB/s ({100 * row['copy_share']:.1f} % of copy)"
        products = f"{row['tflops']} TFLOP/s ({100 * row['matmul_share']:.1f} % of matmul)"
        yield f"{begin}: {row['us']} µs, {products if row['matmul_share'] > row['copy_share'] else bandwidth}"
    for left_out, reason in result.get("left_out", {}).items():
        yield f"{name}: left out: {left_out}: {reason}"
    for line in verdict_lines(result):
        yield f"{name}: {line}"


def _right(name: str, result: Mapping[str, Any]) -> Iterator[str]:
    if "right" in result:
        yield f"{name}: " + ", ".join(f"{count} {outcome}" for outcome, count in result["right"].items())
    for test, reason in result.get("wrong", {}).items():
        yield f"{name}: {test}: {reason}"


def _serving(name: str, row: Mapping[str, Any]) -> str:
    end = "" if row.get("complete", True) else ", the others were not done in time and are not counted"
    return f"{name}: {row['requests']} requests, {row['output_tokens_per_s']} output tokens/s, {row['seconds']} s{end}"


def _idle(kind: str, rows: int, row: Mapping[str, Any]) -> str:
    traced = row["traced"]
    by_trace = f", {100 * traced['idle_share']:.2f} % by trace" if traced else ""
    by_time = f"{100 * row['idle_share_by_time']:.2f} % by time"
    steps = f"engine {row['engine_step_ms']} ms, device alone {row['device_step_ms']} ms"
    return f"idle, {kind.replace('_', ' ')}, {rows} rows: {by_time}{by_trace} ({steps})"
