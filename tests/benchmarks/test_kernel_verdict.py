"""What the kernel bench makes of its rows: points that are ahead or lost, and goals. Rows are made up here."""

from typing import Any

import pytest

from benchmarks.device.table import lines
from benchmarks.kernel_bench.cases import DEEPSEEK_LATENT, GEMMA, LLAMA_8B, LLAMA_70B, decode, prefill
from benchmarks.kernel_bench.forms import GPU, SUITE_CASES
from benchmarks.kernel_bench.verdict import compared, goals, verdict, verdict_lines

MANY, LONG, PROMPT = decode(LLAMA_8B, 32, 2048), decode(LLAMA_8B, 1, 32768), prefill(LLAMA_8B, 1, 8192)


def timed(case: Any, backend: str, us: float, copy: float = 0.5, matmul: float = 0.5) -> dict[str, Any]:
    shares = {"copy_share": copy, "matmul_share": matmul, "roof_share": max(copy, matmul)}
    return {"case": getattr(case, "name", case), "backend": backend, "us": us, **shares}


def failed(case: Any, backend: str, error: str) -> dict[str, Any]:
    return {"case": getattr(case, "name", case), "backend": backend, "error": error}


def test_a_point_is_ahead_of_some_and_behind_others() -> None:
    rows = [timed("a", "xla", 40.0), timed("a", "mosaic_gpu", 10.0), timed("a", "cudnn paged", 8.0)]
    rows += [failed("a", "torch", "no memory"), timed("b", "mosaic_gpu", 5.0), timed("b", "xla", 6.0)]
    a, b = compared(rows, "gpu")
    assert a["times"] == {"xla": 4.0, "cudnn paged": 0.8}
    assert (a["lost"], b["lost"]) == (["cudnn paged"], [])
    assert list(verdict_lines({"compared": [a, b]})) == [
        "a, mosaic_gpu: ahead of xla 4.00 x; behind cudnn paged 0.80 x; not compared with torch: no memory",
        "b, mosaic_gpu: ahead of xla 1.20 x",
        "lost: a: cudnn paged (0.80 x its time); mosaic_gpu takes 10.0 µs, 50 % of the roof",
        "lost: 1 of 2 points",
    ]


def test_as_fast_is_not_ahead() -> None:
    (point,) = compared([timed("a", "mosaic_gpu", 10.0), timed("a", "xla", 10.0)], "gpu")
    assert point["lost"] == ["xla"]


def test_a_kernel_that_does_not_run_loses_its_point() -> None:
    rows = [failed("a", "mosaic_gpu", "ValueError: wrong"), timed("a", "xla", 40.0)]
    shown = list(verdict_lines(verdict(rows, [], "gpu")))
    assert shown[-2:] == ["lost: a: mosaic_gpu did not run: ValueError: wrong", "lost: 1 of 1 points"]


@pytest.mark.parametrize(
    ("platform", "ours"), [("gpu", "mosaic_gpu"), ("tpu", "mosaic_tpu"), ("cpu", "xla"), ("latent on gpu", "xla")]
)
def test_ours_is_the_kernel_of_the_platform_where_there_is_one(platform: str, ours: str) -> None:
    rows = [timed("a", "xla", 3.0), timed("a", "torch", 2.0)]
    rows += [] if ours == "xla" else [timed("a", ours, 1.0)]
    (point,) = compared(rows, platform.split()[-1])
    assert point["ours"] == ours
    assert point["lost"] == (["torch"] if ours == "xla" else [])


def test_points_without_another_are_not_counted() -> None:
    shown = list(verdict_lines(verdict([timed("a", "xla", 3.0)], [], "cpu")))
    assert shown == ["a, xla: nothing to compare it with"]


def test_goals_are_met_from_their_very_figure_on() -> None:
    rows = [timed(MANY, "mosaic_gpu", 100.0, copy=0.85), timed(MANY, "xla", 399.0)]
    rows += [timed(LONG, "mosaic_gpu", 100.0, copy=0.849), timed(PROMPT, "mosaic_gpu", 100.0, copy=0.9, matmul=0.65)]
    assert [(goal["case"], goal["found"], goal["outcome"]) for goal in goals(rows, [MANY, LONG, PROMPT])] == [
        (MANY.name, 0.85, "met"),
        (MANY.name, 3.99, "missed"),
        (LONG.name, 0.849, "missed"),
        (PROMPT.name, 0.65, "met"),
    ]


def test_goals_without_figures_say_why() -> None:
    rows = [failed(MANY, "mosaic_gpu", "out of registers"), timed(MANY, "xla", 400.0), timed(LONG, "xla", 9.0)]
    assert [goal["outcome"] for goal in goals(rows, [MANY, LONG, PROMPT])] == [
        "not measured: out of registers",
        "not measured: out of registers",
        "not measured: it did not run",
        "not measured: it did not run",
    ]
    rows = [timed(MANY, "mosaic_gpu", 100.0, copy=0.9), failed(MANY, "xla", "no memory")]
    assert [goal["outcome"] for goal in goals(rows, [MANY])] == ["met", "not measured: no memory"]


def test_goals_are_set_for_8_heads_of_128_alone() -> None:
    others = [decode(model, 32, 2048) for model in (LLAMA_70B, GEMMA, DEEPSEEK_LATENT)]
    few = [decode(LLAMA_8B, *size) for size in ((31, 2048), (32, 2047), (1, 8192))]
    prompts = [prefill(LLAMA_8B, 1, 4096), prefill(LLAMA_8B, 1, 32768)]
    assert goals([], [*others, *few, *prompts]) == []
    assert {goal["case"] for goal in goals([], SUITE_CASES["gpu"])} == {
        MANY.name,
        LONG.name,
        PROMPT.name,
        decode(LLAMA_8B, 256, 2048).name,
    }
    larger = {goal["case"] for goal in goals([], GPU.cases)}
    assert {decode(LLAMA_8B, 32, 8192).name, decode(LLAMA_8B, 256, 2048).name} < larger


def test_the_suite_shows_the_verdict() -> None:
    rows = [timed(MANY, "mosaic_gpu", 100.0, copy=0.9), timed(MANY, "xla", 500.0)]
    found = {"left_out": {"cudnn": "cuDNN is not installed"}, **verdict(rows, [MANY], "gpu")}
    assert list(lines({"kernels": found})) == [
        "kernels: left out: cudnn: cuDNN is not installed",
        "kernels: Llama-3.1-8B decode 32 x 2048, mosaic_gpu: ahead of xla 5.00 x",
        "kernels: lost: 0 of 1 points",
        "kernels: goal: Llama-3.1-8B decode 32 x 2048, share of the copy's bandwidth, at least 0.85: 0.900, met",
        "kernels: goal: Llama-3.1-8B decode 32 x 2048, times as fast as xla, at least 4.0: 5.000, met",
    ]
