"""The device suite's parts and their reckoning, with the tiniest shapes on a CPU. Nothing is timed here."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.device import kernel_times, right, vllm_peer
from benchmarks.device.context import Context
from benchmarks.device.counts import matrix_elements, step_work
from benchmarks.device.folder import tensor_shapes, write_folder
from benchmarks.device.forms import (
    CPU,
    FORMS,
    GPU,
    GPU_16GB,
    GPU_32GB,
    GPU_80GB,
    TINY,
    TPU,
    TPU_16GB,
    TPU_32GB,
    form_name,
)
from benchmarks.device.idle import intervals_of, union
from benchmarks.device.parts import BY_NAME, PARTS, STRAIGHT_IN_BUFFERS, Part
from benchmarks.device.steps import rig_shapes
from benchmarks.device.table import headline, lines
from benchmarks.device.workload import check_lengths, make_jobs
from benchmarks.device_suite import Suite, _in_form, _unusable, reason_to_skip
from jaxinfer.model_config.model_files import read_model_files
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import load_model
from jaxinfer.text.tokenizer.tokenizer import Tokenizer

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "device_suite.py"


def run_suite(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), "--form", "tiny", "--out", str(folder / "out"), *flags]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=280)


def running(text: str) -> list[int]:
    """Processes whose command line holds `text`."""
    lines = {int(file.parent.name): file for file in Path("/proc").glob("[0-9]*/cmdline")}
    return [number for number, file in lines.items() if number != os.getpid() and text.encode() in read(file)]


def read(file: Path) -> bytes:
    """What it holds; nothing where its process has ended meanwhile."""
    try:
        return file.read_bytes()
    except OSError:
        return b""


def context(file: Path) -> Context:
    return Context("x", TINY, {}, file.parent, file, time.time(), time.time() + 60, "python x")


def suite(folder: Path) -> Suite:
    return Suite(TINY, folder, folder, time.time() + 270)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("size", ["small", "large"])
def test_matrices_are_those_of_the_checkpoint(form, size: str) -> None:
    config = getattr(form, size)
    shapes = {name: shape for name, (shape, _) in tensor_shapes(config).items()}
    inside = sum(int(np.prod(shape)) for name, shape in shapes.items() if "layers" in name and len(shape) == 2)
    assert matrix_elements(parse_config(dict(config))) == inside


def test_sizes_are_those_of_the_models_named() -> None:
    counts = [sum(int(np.prod(s)) for s, _ in tensor_shapes(config).values()) for config in (GPU.small, GPU.large)]
    assert counts == [596_049_920, 8_030_261_248]  # as their cards say: 0.6B and 8.03B


def test_work_of_a_step_by_hand() -> None:
    config = parse_config(dict(TINY.small))
    heads, keys, head, hidden, inner, layers, vocabulary = 4, 2, 8, 32, 64, 2, 512
    layer = hidden * (heads + 2 * keys) * head + heads * head * hidden + 3 * hidden * inner
    kv = 2 * layers * keys * head
    decode = step_work(config, 2, tokens=1, rows=3, context=10)
    assert decode.bytes == 2 * (layers * layer + vocabulary * hidden + 3 * (10 + 1 + 1) * kv)
    # Scores and weighted sums: two products of head_dim with each of the 11 keys, a head and layer.
    assert decode.flops == 2 * 3 * (layers * layer + vocabulary * hidden + layers * heads * head * 2 * 11)
    prompt = step_work(config, 2, tokens=4, rows=1, context=0)
    keys_seen = 1 + 2 + 3 + 4
    assert prompt.flops == 2 * (4 * layers * layer + vocabulary * hidden + layers * heads * head * 2 * keys_seen)


@pytest.mark.parametrize("config", [TINY.small, TINY.large], ids=["qwen3", "llama"])
def test_a_folder_is_a_model_that_jaxinfer_reads(tmp_path: Path, config) -> None:
    write_folder(tmp_path, config, "bfloat16")
    files = read_model_files(tmp_path)
    model = load_model(tmp_path, files.config, dtype=jnp.dtype("float32"))
    hidden = np.random.default_rng(0).standard_normal((200, config["hidden_size"]))
    assert 2.5 < np.std(hidden @ np.asarray(model.head[0]).T) < 3.5
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.vocab_size == config["vocab_size"]
    assert tokenizer.decode(tokenizer.encode("Hello, wörld 世")) == "Hello, wörld 世"
    assert tokenizer.eos_token_id == 0


@pytest.mark.parametrize(
    ("backend", "memory", "name"),
    [
        ("gpu", 105 << 30, "gpu"),  # H200
        ("gpu", 59 << 30, "gpu-80gb"),
        ("gpu", 29 << 30, "gpu-32gb"),
        ("gpu", 16 << 30, "gpu-16gb"),  # L4
        ("gpu", None, "gpu-16gb"),
        ("tpu", 95 << 30, "tpu"),  # v5p, v7x
        ("tpu", 31 << 30, "tpu-32gb"),  # v6e, v4
        ("tpu", 15 << 30, "tpu-16gb"),  # v5e
        ("tpu", None, "tpu-16gb"),
        ("cpu", None, "cpu"),
    ],
)
def test_the_form_is_that_of_the_device(backend: str, memory: int | None, name: str, tmp_path: Path) -> None:
    assert form_name(backend, memory) == name
    found = {"backend": backend, "memory": memory, "provenance": {"hardware": {"devices": ["x"]}}}
    chosen = _in_form(suite(tmp_path), None, found)
    assert (chosen.form, chosen.hardware) == (FORMS[name], {"devices": ["x"]})
    assert json.loads((tmp_path / "environment.json").read_text())["form"] == name
    assert _in_form(suite(tmp_path), "tiny", found).form == TINY


@pytest.mark.parametrize(
    ("form", "backend", "told"), [("gpu", "tpu", "no GPU here"), ("tpu-16gb", "gpu", "no TPU here")]
)
def test_a_form_of_another_platform_is_refused(form: str, backend: str, told: str) -> None:
    assert told in str(_unusable({"missing": {}, "backend": backend}, form))
    assert _unusable({"missing": {}, "backend": backend}, "tiny") is None
    assert _unusable({"missing": {}, "backend": FORMS[form].platform}, form) is None


@pytest.mark.parametrize(
    ("form", "memory"),
    [
        (GPU, 140 << 30),
        (GPU_80GB, 79 << 30),
        (GPU_32GB, 31 << 30),
        (GPU_16GB, 15 << 30),
        (TPU, 60 << 30),
        (TPU_32GB, 28 << 30),
        (TPU_16GB, 15 << 30),
    ],
)
@pytest.mark.parametrize("size", ["small", "large"])
def test_the_steps_of_a_form_fit_the_device(form, memory: int, size: str) -> None:
    """Weights and KV leave a tenth for what lies between."""
    config = parse_config(dict(getattr(form, size)))
    weights = sum(int(np.prod(shape)) for shape, _ in tensor_shapes(getattr(form, size)).values())
    tokens = max(count * each for count, each in form.prefills)
    length = max(form.context + form.steps + 2, max(each for _, each in form.prefills) + 1)
    shapes = rig_shapes(config, rows=max(form.rows), tokens=tokens, length=length, block_size=128)
    attention = config.layers[0].mixer
    token = 2 * len(config.layers) * attention.num_kv_heads * attention.head_dim
    held = 2 * (weights + shapes.groups[0].num_blocks * 128 * token)
    assert held < 0.9 * memory


def test_what_cannot_run_on_a_platform_says_why() -> None:
    everything: dict[str, bool] = dict.fromkeys(("torch", "transformers", "vllm", "pytest", "hypothesis"), True)
    on_tpu = {part.name: reason for part in PARTS if (reason := reason_to_skip(part, TPU, everything))}
    of_gpus = {part.name for part in PARTS if part.flags}
    assert on_tpu.keys() == {*of_gpus, "transformers", "vllm"}
    assert {on_tpu[name] for name in of_gpus} == {"its flags are for a GPU"}
    assert all("compared on GPUs" in on_tpu[name] for name in ("transformers", "vllm"))
    assert [part.name for part in PARTS if reason_to_skip(part, GPU, everything)] == []
    absent = reason_to_skip(BY_NAME["right"], TPU, {**everything, "hypothesis": False})
    assert absent == "hypothesis is not installed"


@pytest.mark.parametrize(
    ("form", "platforms", "first"),
    [(GPU, "cuda,cpu", "test_gpu_kv_write.py"), (TPU_16GB, "tpu,cpu", "test_tpu_attention.py"), (CPU, "cpu", None)],
)
def test_kernels_are_tested_on_the_device_itself(
    form, platforms: str, first: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run(arguments: list[str], plugins: list) -> None:
        asked.append(arguments)
        plugins[0].counts["passed"] = 1

    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(pytest, "main", run)
    where = replace(context(tmp_path / "right.json"), form=form, hardware={"devices": []})
    right.measure(where)
    files = [Path(argument) for argument in asked[0] if argument.endswith(".py")]
    assert os.environ["JAX_PLATFORMS"] == platforms
    assert all(file.is_file() for file in files)
    assert files[-1].name == "test_attention.py"
    assert first is None or files[0].name == first


def test_devices_that_are_known_are_not_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that asks takes them, and the server that it starts finds none."""
    monkeypatch.setattr("jax.devices", lambda: pytest.fail("asked"))
    known = {"devices": ["TPU v5 lite"], "platform": "tpu"}
    replace(context(tmp_path / "x.json"), hardware=known).save(first=1)
    assert json.loads((tmp_path / "x.json").read_text())["provenance"]["hardware"] == known


def test_jobs_are_the_same_for_every_engine() -> None:
    jobs = make_jobs(CPU, 40)
    assert jobs == make_jobs(CPU, 40)
    assert jobs != make_jobs(CPU, 40, seed=1)
    assert {len(job.prompt) for job in jobs} | {job.output for job in jobs} <= set(range(10, 65))
    assert len({len(job.prompt) for job in jobs}) > 10
    assert all(0 < token < CPU.small["vocab_size"] for job in jobs for token in job.prompt)
    longest = max(len(job.prompt) + job.output for job in make_jobs(GPU, 256))
    assert longest <= min(form.max_model_len for form in (GPU, TPU, TPU_32GB, TPU_16GB))


def test_engines_are_not_believed_where_they_make_too_few_tokens() -> None:
    jobs = make_jobs(TINY, 3)
    check_lengths(jobs, [job.output for job in jobs])
    with pytest.raises(RuntimeError, match=f"{jobs[2].output - 1} tokens were made where {jobs[2].output}"):
        check_lengths(jobs, [*(job.output for job in jobs[:2]), jobs[2].output - 1])


def test_vllm_gets_the_same_jobs_and_a_warm_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[tuple[list[int], int]]] = []

    class Fake:
        def __init__(self, folder: str, **settings: object) -> None:
            assert (Path(folder) / "config.json").exists()

        def generate(self, prompts: list[dict], params: list[dict], use_tqdm: bool) -> list[SimpleNamespace]:
            lengths = [each["max_tokens"] for each in params]
            asked.append(list(zip((prompt["prompt_token_ids"] for prompt in prompts), lengths, strict=True)))
            return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[1] * length)]) for length in lengths]

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=Fake, SamplingParams=dict))
    vllm_peer.measure(context(tmp_path / "vllm.json"))
    assert asked == [make_jobs(TINY, 1, seed=1), make_jobs(TINY, TINY.requests)]
    written = json.loads((tmp_path / "vllm.json").read_text())
    assert written["serving"]["output_tokens"] == sum(job.output for job in make_jobs(TINY, TINY.requests))


def test_a_part_that_is_ended_while_it_writes_leaves_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = context(tmp_path / "x.json")
    here.save(first=1)

    def half(path: Path, text: str) -> None:
        with path.open("w") as file:
            file.write(text[: len(text) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(KeyboardInterrupt):
        here.save(second=2)
    assert json.loads((tmp_path / "x.json").read_text())["first"] == 1


@pytest.mark.long
def test_no_two_kernel_tests_have_the_same_inputs(tmp_path: Path) -> None:
    """Each of two tests draws twice with one seed, in three runs, of which two have one seed, too."""
    test = "import numpy as np\n\ndef test_{0}():\n    drawn = [np.random.default_rng(0).random() for _ in range(2)]\n"
    test += "    assert drawn[0] == drawn[1]\n    print('drawn', drawn[0])\n\n"
    (tmp_path / "test_drawn.py").write_text(test.format("a") + test.format("b"))
    call = "import sys, pytest; from benchmarks.device.right import Fresh; plugins = [Fresh(int(sys.argv[1]))]; "
    call += "sys.exit(pytest.main(['-q', '-s', '-p', 'no:cacheprovider', 'test_drawn.py'], plugins=plugins))"
    drawn = []
    for seed in ("1", "2", "1"):
        command = [sys.executable, "-c", call, seed]
        where = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[1]), "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=where, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        drawn.append(re.findall(r"drawn (\S+)", done.stdout))
    assert len(set(drawn[0] + drawn[1])) == 4
    assert drawn[2] == drawn[0]


def test_busy_time_is_counted_once() -> None:
    assert union([(5, 6), (0, 2), (1, 3), (3, 4), (5.5, 5.7)]) == [(0, 4), (5, 6)]
    assert union([]) == []


@pytest.mark.parametrize(
    ("plane", "line", "found"),
    [
        ("/device:GPU:0", "Stream #14(Compute)", [(5, 7)]),
        ("/device:GPU:0", "XLA Ops", []),
        ("/device:TPU:0", "XLA Ops", [(5, 7)]),
        ("/device:TPU:0", "XLA Modules", []),
        ("/host:CPU", "XLA Ops", []),
    ],
)
def test_what_ran_on_a_device_is_told_from_the_rest(plane: str, line: str, found: list) -> None:
    event = SimpleNamespace(start_ns=5, duration_ns=2)
    lines = [SimpleNamespace(name=line, events=[event])]
    assert intervals_of(SimpleNamespace(planes=[SimpleNamespace(name=plane, lines=lines)])) == found


def test_table_and_headline() -> None:
    step = {"kind": "decode", "rows": 2, "tokens_a_row": 1, "step_ms": 1.5, "gb_per_s": 50.0, "tflops": 0.1}
    rate = {"requests": 3, "output_tokens_per_s": 70.0, "seconds": 2.0}
    results = {
        "ceilings": {"copy_gb_per_s": 200.0, "read_gb_per_s": 250.0, "matmul_tflops": 4.0, "matmul_dtype": "bfloat16"},
        "steps-small": {"steps": [step, {**step, "kind": "prefill", "tokens_a_row": 8}]},
        "serving": {"serving": rate},
        "transformers": {"serving": {**rate, "output_tokens_per_s": 35.0, "complete": False}},
        "vllm": {"skipped": "vllm is not installed"},
        "idle": {
            "rows": 2,
            "overlap": {"engine_step_ms": 2.0, "device_step_ms": 1.5, "idle_share_by_time": 0.25, "traced": None},
            "no_overlap": {"engine_step_ms": 3.0, "traced": None},  # ended before the device was timed alone
        },
    }
    text = "\n".join(lines(results))
    assert "decode 2 x 1: 1.5 ms, 50.0 GB/s (25.0 % of copy)" in text
    assert "prefill 2 x 8: 1.5 ms, 0.1 TFLOP/s (2.5 % of matmul)" in text
    assert headline(results) == "serving: 70.0 output tokens/s, 3 requests; transformers at least 35.0"
    assert [line for line in lines(results) if line.startswith("idle")] == [
        "idle, overlap, 2 rows: 25.00 % by time (engine 2.0 ms, device alone 1.5 ms)"
    ]
    assert headline({}) == "serving: not measured"
    assert list(lines({"serving": {"ended": "out of time"}})) == []


@pytest.mark.long
def test_it_writes_a_file_a_part_and_ends_with_the_headline(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "--parts", "ceilings,straight-small,vllm", "--json", str(tmp_path / "all.json"))
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.splitlines()[-1] == "serving: not measured"
    assert "copy" in done.stdout
    ceilings = json.loads((tmp_path / "out" / "ceilings.json").read_text())
    assert ceilings["copy_gb_per_s"] > 0
    assert ceilings["matmul_tflops"] > 0
    where = ceilings["provenance"]
    assert where["command"].startswith("python benchmarks/device_suite.py --form tiny")
    assert set(where) >= {"commit", "date", "processor", "versions", "xla_flags", "hardware"}
    parts = json.loads((tmp_path / "all.json").read_text())["parts"]
    assert list(parts) == ["environment", "ceilings", "straight-small", "vllm"]
    assert "for a GPU" in parts["straight-small"]["skipped"]


@pytest.mark.long
def test_without_a_gpu_it_says_so_first_and_names_what_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), "--parts", "straight-small"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    first, second, third, *_ = done.stdout.splitlines()
    assert first.startswith("environment ")
    assert second.startswith("No GPU or TPU was found: the small CPU form runs")
    assert "up to 9 minutes" in second
    assert third.startswith("form cpu on")
    out = tmp_path / "device-suite-results"
    assert {json.loads((out / name).read_text())["form"] for name in ("environment.json", "summary.json")} == {"cpu"}


@pytest.mark.long
def test_steps_of_both_layouts_under_flags_of_their_own(tmp_path: Path) -> None:
    straight = suite(tmp_path).run(BY_NAME["straight-small"])
    assert straight["ended"] == "done"
    assert STRAIGHT_IN_BUFFERS in straight["provenance"]["xla_flags"]
    assert [(row["kind"], row["rows"]) for row in straight["steps"]] == [("decode", 2)]
    assert all(row["step_ms"] > 0 and row["bytes"] > 0 for row in straight["steps"])


@pytest.mark.long
def test_a_part_that_takes_too_long_ends_alone(tmp_path: Path) -> None:
    stuck = Part("serving", "serving", seconds=1, what="")
    assert suite(tmp_path).run(stuck)["ended"] == "out of time"
    assert suite(tmp_path).run(BY_NAME["ceilings"])["ended"] == "done"


@pytest.mark.long
def test_a_suite_that_is_ended_takes_its_part_with_it(tmp_path: Path) -> None:
    mark = str(tmp_path / "out" / "serving.json")
    command = [sys.executable, str(PROGRAM), "--form", "tiny", "--out", str(tmp_path / "out"), "--parts", "serving"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    while not running(mark):
        assert process.poll() is None
        time.sleep(0.002)  # it may be ended as soon as there is a part
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGTERM
    assert running(mark) == []


def test_parts_fit_together() -> None:
    assert len({part.name for part in PARTS}) == len(PARTS)
    folder = PROGRAM.parent / "device"
    assert all((folder / f"{part.module}.py").is_file() for part in PARTS)


def test_kernels_are_summed_by_name() -> None:
    events = [SimpleNamespace(name=name, duration_ns=1000 * us) for name, us in [("a", 9), ("b", 90), ("a", 18)]]
    assert kernel_times.by_name(events) == [
        {"name": "b", "a_step": 0.11, "us_a_step": 10.0},
        {"name": "a", "a_step": 0.22, "us_a_step": 3.0},
    ]


@pytest.mark.parametrize("flags", [["--minutes", "0.5"], ["--minutes", "15", "--budget", "60"]])
def test_minutes_are_one_at_least_and_the_only_limit(flags: list[str], tmp_path: Path) -> None:
    done = run_suite(tmp_path, *flags)
    assert done.returncode == 2
    assert "--minutes: must be at least 1, and not beside --budget" in done.stderr


def test_unknown_parts_are_refused(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "--parts", "ceilings,nonsense")
    assert done.returncode == 2
    assert "'nonsense' is unknown" in done.stderr


@pytest.mark.long
def test_every_part_that_a_cpu_can_run(tmp_path: Path) -> None:
    done = run_suite(
        tmp_path, "--parts", "ceilings,starts,serving,idle,kernel-times,steps-small,steps-large,scan-small,scan-large"
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.splitlines()[-1].startswith("serving: ")
    serving, idle = (json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in ("serving", "idle"))
    assert serving["serving"]["requests"] == TINY.requests
    assert serving["serving"]["compiles_after_ready"] == 0
    assert [run["start"]["compile_cache"] for run in (serving, idle)] == ["cold", "warm"]
    kinds = [idle["overlap"], idle["no_overlap"]]
    shares = [1 - kind["device_step_ms"] / kind["engine_step_ms"] for kind in kinds]
    assert [kind["idle_share_by_time"] for kind in kinds] == pytest.approx(shares, abs=1e-4)
    assert kinds[1]["context"] - kinds[0]["context"] >= 2 * TINY.steps
    assert all(json.loads(file.read_text())["complete"] for file in (tmp_path / "out").glob("s*-*.json"))
    starts, times = (json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in ("starts", "kernel-times"))
    assert starts["starts"]["cold"]["seconds"]["compile"] > starts["starts"]["warm"]["seconds"]["compile"] > 0
    assert [(one["kind"], one["rows"], one["kernels"]) for one in times["profiles"]] == [
        ("decode", 2, []),
        ("prefill", 2, []),
    ]


@pytest.mark.long
@pytest.mark.parity
def test_transformers_runs_the_same_jobs(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    result = suite(tmp_path).run(BY_NAME["transformers"])
    assert result["ended"] == "done"
    assert result["serving"]["output_tokens"] == sum(job.output for job in make_jobs(TINY, TINY.requests))
