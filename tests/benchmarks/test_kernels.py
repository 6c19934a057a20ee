"""The kernel bench's reckoning, its programs with tiny shapes, its plot. Nothing is timed here."""

import json
import re
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from xml.etree import ElementTree

import jax
import numpy as np
import pytest
from jaxinfer_kernels import KVLayout

from benchmarks.device.counts import Work
from benchmarks.device.forms import FORMS as DEVICE_FORMS
from benchmarks.device.parts import BY_NAME
from benchmarks.device.table import lines
from benchmarks.device_suite import Suite
from benchmarks.kernel_bench import kv_write, matmuls
from benchmarks.kernel_bench.attention import attention_chain, layers_for, page_bytes, runnable
from benchmarks.kernel_bench.bench import Bench, run_cases
from benchmarks.kernel_bench.cases import (
    DEEPSEEK_LATENT,
    GEMMA,
    LLAMA_8B,
    MODELS,
    AttentionCase,
    MatmulCase,
    ModelShape,
    WriteCase,
    decode,
    mixed,
    prefill,
    verify,
)
from benchmarks.kernel_bench.counts import group_sizes, work_of
from benchmarks.kernel_bench.forms import CPU, FORMS, GPU, SUITE_CASES, TINY, WORTH_MOST
from benchmarks.kernel_bench.matmuls import matmul_chain
from benchmarks.kernel_bench.raggedness import Pool, line_through
from benchmarks.kernel_bench.roofline import draw_roofline
from benchmarks.kernel_bench.timing import Ceilings, Chain, figures, time_in_turns, with_shares
from benchmarks.kernel_bench.torch_peer import torch_peers
from tests.kernels.interpreter import tpu_interpreter

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "kernels.py"
SVG = "{http://www.w3.org/2000/svg}"
WINDOWED = ModelShape("windowed", 4, 2, 12, 8, window=7)
LATENT = ModelShape("latent", 4, 1, 12, 8, latent=True)
BENCH = Bench(TINY, "cpu", 16, Ceilings(1e9, 1e9))


def attention_cases(model: ModelShape) -> list[AttentionCase]:
    return [
        decode(model, 3, 20),
        verify(model, 2, 9),
        prefill(model, 2, 11),
        prefill(model, 1, 30, 5),
        mixed(model, 2, 6, 9),
    ]


@pytest.mark.parametrize("model", [WINDOWED, WINDOWED._replace(window=None), LATENT], ids=["window", "all", "latent"])
@pytest.mark.parametrize("index", range(5))
def test_work_is_that_of_every_pair_and_key(model: ModelShape, index: int) -> None:
    case = attention_cases(model)[index]
    pairs, cached, tokens = 0, 0, 0
    for start, count in case.lengths:
        seen = {
            (token, key)
            for token in range(start, start + count)
            for key in range(token + 1)
            if model.window is None or token - key < model.window
        }
        pairs, tokens = pairs + len(seen), tokens + count
        cached += len({key for _, key in seen if key < start})
    kept = model.key_dim if model.latent else model.kv_heads * (model.key_dim + model.value_dim)
    work = work_of(case, 2)
    assert work.bytes == 2 * ((cached + 2 * tokens) * kept + tokens * model.q_heads * (model.key_dim + model.value_dim))
    assert work.flops == 2 * pairs * model.q_heads * (model.key_dim + model.value_dim)


@pytest.mark.parametrize("case", [case for case in TINY.cases if isinstance(case, MatmulCase)], ids=lambda c: c.name)
def test_work_of_matmuls_is_that_of_their_arrays(case: MatmulCase) -> None:
    rows, read = case.tokens * case.chosen, 1
    if case.experts:
        sizes = group_sizes(case)
        assert sizes.sum() == rows
        read = int(np.count_nonzero(sizes))
    of_codes = 2 * case.hidden * case.inner // case.group if case.group else case.hidden + case.inner
    scales = 0 if case.weights == "plain" else of_codes
    bytes_a_weight = {"plain": 4, "int8": 1, "e4m3": 1, "int4": 0.5, "e2m1": 0.5}[case.weights]
    of_scale = 1 if case.weights == "e2m1" else 4
    weights = read * (2 * case.hidden * case.inner * bytes_a_weight + of_scale * scales)
    moved = 4 * rows * sum((case.hidden, case.inner, case.inner, case.hidden))
    assert work_of(case, 4) == Work(int(weights) + moved, 4 * rows * case.hidden * case.inner)


@pytest.mark.parametrize(("dtype", "itemsize"), [("bfloat16", 2), ("float8_e4m3fn", 1)])
def test_work_of_writes_is_to_read_and_to_write_what_is_new(dtype: str, itemsize: int) -> None:
    assert work_of(WriteCase(LLAMA_8B, 32, 1, dtype), 2) == Work(2 * 32 * 2 * 8 * 128 * itemsize, 0)
    assert work_of(WriteCase(LLAMA_8B, 1, 2048, dtype), 2) == Work(2 * 2048 * 2 * 8 * 128 * itemsize, 0)


@pytest.mark.parametrize("calls", [2, 5])
def test_a_chain_walks_over_layers_and_writes_each(calls: int) -> None:
    case = decode(ModelShape("x", 4, 2, 8, 8), 2, 20)
    chain = attention_chain(case, "xla", KVLayout.TOKENS, page_size=4, layers=3, calls=calls, dtype="float32")
    before = np.asarray(chain.state[0])
    pages, out = chain.run(chain.state)
    changed = (np.asarray(pages) != before).reshape(3, -1).any(axis=1)
    assert changed.tolist() == [True, True, calls > 2]
    assert out.shape == (2, 4, 8)
    assert np.isfinite(np.asarray(out)).all()


@pytest.mark.long
def test_matmul_chains_keep_the_size_of_values() -> None:
    for case in TINY.cases:
        if isinstance(case, MatmulCase):
            chain = matmul_chain(case, "xla", 4, "float32")
            out = np.asarray(chain.run(chain.state))
            assert out.shape == (case.tokens * case.chosen, case.hidden)
            assert 0.01 < out.std() < 100
            assert chain.calls == 4


@pytest.mark.few(7)
@pytest.mark.parametrize("fault", [0.0, 0.1, float("nan")])
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("kind", ["quantized", "grouped"])
def test_a_backend_whose_products_are_wrong_is_not_timed(
    kind: str, rounded: bool, fault: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    matmul_cases = [case for case in TINY.cases if isinstance(case, MatmulCase)]
    case = next(case for case in matmul_cases if (case.kind, case.rounded) == (kind, rounded))
    right = matmuls._multiplied

    def product(x: jax.Array, side: dict, sizes: jax.Array | None, backend: str) -> jax.Array:
        made = right(x, side, sizes, "xla")
        return made if backend == "xla" else made.at[0, 0].add(fault)

    monkeypatch.setattr(matmuls, "_multiplied", product)
    with nullcontext() if fault == 0 else pytest.raises(ValueError, match="the products of other are wrong: an error"):
        matmul_chain(case, "other", 1, "float32")


def test_layers_are_as_many_as_caches_and_memory_ask_for() -> None:
    short, long = decode(LLAMA_8B, 1, 500), decode(LLAMA_8B, 1, 32768)
    assert layers_for(long, GPU, 64, 2) == 1
    # 128 MiB of keys and values, of which a layer has 2 x 8 x 128 x 2 bytes a token.
    assert layers_for(decode(LLAMA_8B, 8, 500), GPU, 64, 2) == -(-(128 << 20) // (8 * 500 * 4096))
    assert layers_for(short, GPU, 64, 2) == 64  # the most
    assert layers_for(decode(LLAMA_8B, 256, 32768), CPU, 16, 4) == 0
    assert page_bytes(decode(DEEPSEEK_LATENT, 1, 64), 64, 2) == 2 * 64 * 576 * 2


def test_cases_that_do_not_fit_or_come_too_late_are_named() -> None:
    large = decode(LLAMA_8B, 256, 32768)
    *_, (rows, left_out) = run_cases(BENCH, [large, TINY.cases[0]], time.time() - 1)
    assert rows == []
    assert left_out == {large.name: "no time was left", TINY.cases[0].name: "no time was left"}
    *_, (rows, left_out) = run_cases(BENCH, [large], time.time() + 60)
    assert left_out == {large.name: "its pages take more than 16 MiB"}


def test_a_backend_that_raises_is_told_and_the_others_go_on() -> None:
    order: list[str] = []

    def make(name: str) -> Chain:
        if name == "no program":
            raise ValueError("no such kernel\nand more")

        def run(state: int) -> int:
            order.append(name)
            if name == "no run":
                raise RuntimeError("out of registers")
            return state + 1

        return Chain(run, 0, 1)

    names = ["a", "no program", "no run", "b"]
    found = time_in_turns({name: (lambda name=name: make(name)) for name in names}, 2)
    assert found["no program"] == "ValueError: no such kernel"
    assert found["no run"] == "RuntimeError: out of registers"
    assert [len(found[name]) for name in "ab"] == [2, 2]
    assert order == ["a", "a", "no run", "b", "b", "a", "b", "a", "b"]


def test_shares_by_hand() -> None:
    row = with_shares(figures([4e-6, 1e-6, 2e-6], Work(1000, 4000)), Ceilings(1e9, 1e10))
    assert (row["us"], row["us_low_high"]) == (2.0, [1.0, 4.0])
    assert (row["copy_share"], row["matmul_share"], row["roof_share"]) == (0.5, 0.2, 0.5)


def test_only_what_is_made_for_the_device_runs() -> None:
    known = ("xla", "mosaic_tpu", "mosaic_gpu")
    assert runnable(known, "cpu") == ("xla",)
    assert runnable(known, "tpu") == ("xla", "mosaic_tpu")
    assert runnable(known, "gpu") == ("xla", "mosaic_gpu")


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_cases_have_names_of_their_own(form) -> None:
    names = [case.name for case in form.cases]
    assert len(set(names)) == len(names)


def test_the_suite_has_each_kernel_and_each_point_that_a_goal_is_set_for() -> None:
    """Decode 32 x 2k and 1 x 32k with 8 KV heads of 128, a prompt of 8k; each kernel that was made."""
    attention = [case for case in WORTH_MOST if isinstance(case, AttentionCase)]
    assert [(case.kind, case.rows, case.context, case.new) for case in attention[:3]] == [
        ("decode", 32, 2048, 1),
        ("decode", 1, 32768, 1),
        ("prefill", 1, 8192, 8192),
    ]
    assert {(case.model.kv_heads, case.model.key_dim, case.model.value_dim) for case in attention} == {(8, 128, 128)}
    written = {(case.tokens, case.dtype) for case in WORTH_MOST if isinstance(case, WriteCase)}
    assert written == {(each, dtype) for each in (1, 32, 256, 2048) for dtype in ("bfloat16", "float8_e4m3fn")}
    matmuls = {(case.kind, case.weights, case.rounded) for case in WORTH_MOST if isinstance(case, MatmulCase)}
    codes = {("quantized", name, False) for name in ("int8", "int4", "e4m3", "e2m1")}
    assert matmuls == {*codes, ("quantized", "e4m3", True), ("grouped", "plain", False)}


def test_every_form_of_the_suite_has_its_cases_and_they_fit() -> None:
    assert SUITE_CASES.keys() == FORMS.keys() == DEVICE_FORMS.keys()
    for name in ("gpu-16gb", "tpu-16gb"):
        paged = [case for case in SUITE_CASES[name] if not isinstance(case, MatmulCase)]
        assert all(layers_for(case, FORMS[name], 128, 2) > 0 for case in paged)


@pytest.mark.few(3)
@pytest.mark.parametrize("new", [1, 20])
@pytest.mark.parametrize("fault", [False, True])
def test_the_tpu_kernel_that_writes_pages_is_held_against_plain_jax(
    new: int, fault: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, right = WriteCase(ModelShape("x", 4, 2, 8, 8), 2, new, "float32"), kv_write.write_rows
    if fault:
        monkeypatch.setattr(kv_write, "write_rows", lambda *given: right(*given).at[0, 2].add(1))
    with tpu_interpreter(), pytest.raises(ValueError, match="pages of mosaic_tpu") if fault else nullcontext():
        kv_write.check_write(case, "mosaic_tpu", KVLayout.HEADS, 16)


def test_the_grid_is_whole() -> None:
    assert GPU.cases[: len(WORTH_MOST)] == WORTH_MOST
    attention = [case for case in GPU.cases if isinstance(case, AttentionCase)]
    assert {case.kind for case in attention} == {"decode", "prefill", "mixed", "verify"}
    assert {case.model for case in attention} == set(MODELS)
    assert {1, 8, 32, 256} <= {case.rows for case in attention if case.model == GEMMA}
    assert {128, 512, 2048, 8192, 32768} <= {case.context for case in attention if case.model == GEMMA}


def test_the_pool_is_walked_through() -> None:
    pool = Pool(BENCH, "xla")
    lengths = [32, 20, 16]
    assert pool.rounds(lengths) == 8 // 5
    tables = pool.tables(lengths, 4)
    used = [table[row][: -(-length // 16)] for table in tables for row, length in enumerate(lengths)]
    walked = np.concatenate(used)
    assert sorted(walked[:8]) == list(range(1, 9))
    assert walked[8:16].tolist() == walked[:8].tolist()
    assert max(pool.rounds([each]) for each in TINY.contexts) == 4


def test_a_line_and_what_is_off_it() -> None:
    straight = line_through([1, 2, 4, 8], [3e-6, 5e-6, 9e-6, 17e-6])
    assert (straight["us_a_page"], straight["us_at_no_page"], straight["largest_deviation"]) == (2.0, 1.0, 0.0)
    squared = line_through([1, 2, 4, 8], [1e-6, 4e-6, 16e-6, 64e-6])
    assert squared["largest_deviation"] > 0.5


def test_the_roofline_puts_points_where_they_belong() -> None:
    def row(backend: str, seconds: float, kind: str = "decode", intensity: int = 1) -> dict:
        work = {"bytes": 1000, "flops": 1000 * intensity, "us": 1e6 * seconds, "roof_share": 0.5}
        return {"case": "a < b", "kind": kind, "backend": backend, **work}

    # 1e9 bytes a second and 1e11 FLOPs: the ridge is at 100 FLOPs a byte, 1000 bytes take 1 us.
    rows = [row("xla", 1e-6), row("torch", 1e-5), row("xla", 1e-6, "prefill", 100), {"backend": "x", "error": "none"}]
    root = ElementTree.fromstring(draw_roofline(rows, 1e9, 1e11, "a & b"))
    circles = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in root.iter(f"{SVG}circle")][:2]
    slope = next(line for line in root.iter(f"{SVG}line") if line.get("stroke") == "#222")
    x1, y1, x2, y2 = (float(slope.get(name, "")) for name in ("x1", "y1", "x2", "y2"))

    def roof_at(x: float) -> float:
        return y1 + (x - x1) * (y2 - y1) / (x2 - x1)

    assert circles[0][1] == pytest.approx(roof_at(circles[0][0]), abs=0.2)
    assert circles[1][1] > roof_at(circles[1][0]) + 20  # pixels count downwards: below the roof
    text = "".join(root.itertext())
    assert all(word in text for word in ("a & b", "copy 1 GB/s", "matmul 0.1 TFLOP/s", "prefill", "torch", "a < b"))
    square = next(root.iter(f"{SVG}polygon")).get("points", "")
    assert float(square.split(",")[0]) == pytest.approx(
        x2 - 5, abs=0.2
    )  # its left upper corner; it stands at the ridge


def run_bench(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), "--form", "tiny", "--json", str(folder / "kernels.json"), *flags]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=280)


@pytest.mark.long
def test_it_writes_rows_a_plot_and_the_headline(tmp_path: Path) -> None:
    done = run_bench(tmp_path, "--raggedness", "--plot", str(tmp_path / "roofline.svg"))
    assert done.returncode == 0, done.stderr + done.stdout
    assert re.fullmatch(
        r"share of the roof, median over cases - xla: decode .*; xla, 1 rows: .*apart", done.stdout.splitlines()[-1]
    )
    result = json.loads((tmp_path / "kernels.json").read_text())
    rows = [row for row in result["rows"] if row["backend"] == "xla"]
    assert [row["case"] for row in rows] == [case.name for case in TINY.cases]
    refused = [row for row in result["rows"] if "error" in row]
    assert all(row["error"].startswith("ValueError: native takes ") for row in refused)
    assert all(row["us"] > 0 and row["bytes"] > 0 for row in result["rows"] if row not in refused)
    assert result["ceilings"]["copy_gb_per_s"] > 0
    where = result["provenance"]
    assert where["command"].startswith("python benchmarks/kernels.py --form tiny --json kernels.json")
    assert len(where["load_average_before"]) == len(where["load_average_after"]) == 3
    ragged = result["raggedness"]
    assert {tuple(line["pages"]) for line in ragged["time_against_pages"]} == {(2, 4, 8), (16, 32, 64)}
    assert ragged["one_long_row"][0]["ratio"] > 0
    ElementTree.parse(tmp_path / "roofline.svg")


@pytest.mark.long
def test_backends_are_run_by_name_and_one_that_raises_is_listed(tmp_path: Path) -> None:
    done = run_bench(tmp_path, "--cases", "^tiny decode", "--backends", "nonsense,xla")
    assert done.returncode == 0, done.stderr
    rows = {row["backend"]: row for row in json.loads((tmp_path / "kernels.json").read_text())["rows"]}
    assert rows["nonsense"]["error"].startswith("ValueError: backend 'nonsense' is unknown")
    assert rows["xla"]["us"] > 0


def test_cases_for_a_gpu_are_refused_on_a_cpu(tmp_path: Path) -> None:
    done = run_bench(tmp_path, "--form", "gpu")
    assert done.returncode == 1
    assert "--form gpu: JAX finds no GPU or TPU here" in done.stderr
    assert not (tmp_path / "kernels.json").exists()


@pytest.mark.long
def test_it_is_a_part_of_the_suite(tmp_path: Path) -> None:
    result = Suite(DEVICE_FORMS["tiny"], tmp_path, tmp_path, time.time() + 270).run(BY_NAME["kernels"])
    assert result["ended"] == "done", (tmp_path / "kernels.log").read_text()
    assert {row["case"] for row in result["kernels"]} == {case.name for case in TINY.cases}
    shown = list(lines({"kernels": result}))
    times = r"kernels: tiny.*, (xla|native|torch.*): [\d.]+ µs, [\d.e-]+ (GB|TFLOP)/s"
    count = len(result["kernels"])
    assert [line for line in shown[:count] if not re.match(f"{times}|kernels: tiny.*native takes ", line)] == []
    assert not any(re.match(times, line) for line in shown[count:])
    assert {line for line in shown if "left out" in line} >= {
        "kernels: left out: cudnn: it needs a GPU, and JAX runs on cpu",
        "kernels: left out: transformers paged: it is timed on a GPU, and JAX runs on cpu",
        "kernels: left out: mosaic_gpu for kv_write: it needs a GPU, and JAX runs on cpu",
        "kernels: left out: mosaic_tpu for kv_write: it needs a TPU, and JAX runs on cpu",
    }
    assert [point["case"] for point in result["compared"]] == [case.name for case in TINY.cases]
    assert "goals" not in result
    ElementTree.parse(tmp_path / "kernels.svg")


def test_the_suite_shows_what_did_not_run() -> None:
    row = {"case": "Llama decode", "backend": "mosaic_gpu", "error": "ValueError: no"}
    assert list(lines({"kernels": {"kernels": [row]}})) == ["kernels: Llama decode, mosaic_gpu: ValueError: no"]


@pytest.mark.parity
@pytest.mark.parametrize("window", [None, 3])
def test_torch_sees_what_each_token_sees(window: int | None) -> None:
    pytest.importorskip("torch")
    from benchmarks.kernel_bench.torch_peer import _mask

    mask = _mask(7, 4, window).numpy()
    want = [
        [key <= 3 + token and (window is None or 3 + token - key < window) for key in range(7)] for token in range(4)
    ]
    np.testing.assert_array_equal(mask, want)
    assert _mask(7, 1, window) is None


@pytest.mark.parity
def test_torch_runs_every_kind() -> None:
    pytest.importorskip("torch")
    for case in TINY.cases:
        if isinstance(case, AttentionCase):
            makers, left_out = torch_peers(case, "cpu", 2, 2, "float32")
            assert makers
            assert left_out == {}
            found = time_in_turns(makers, 1)
            assert not [error for error in found.values() if isinstance(error, str)], case.name
