"""Which attention backend is chosen, from made-up timings; and an engine over a TPU's kernel in the interpreter."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxinfer_kernels import KVLayout, RaggedRows, gpu_blocks
from jaxinfer_kernels.gpu.work_items import MERGE_PARTS, work_items
from jaxinfer_kernels.rows import split_rows

from jaxinfer.engine.types import GenerateRequest
from jaxinfer.errors import ParameterError
from jaxinfer.model_config.layer_kind import Scoring
from jaxinfer.models.loaded import GroupBackend, LoadedModel
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.platform.autotune_cache import shapes_digest
from jaxinfer.runner.step.group_attention import group_attention, with_backend
from jaxinfer.runner.tuning.attention import choose_attention
from jaxinfer.runner.tuning.attention_check import check_attention
from jaxinfer.runner.tuning.attention_timing import time_attention
from jaxinfer.runner.tuning.backend_choice import Timing, remembered_choice, table
from jaxinfer.runner.tuning.kernel_backends import check_asked
from tests.runner.tiny import drive, greedy, make_core, tiny_model, tiny_shapes

BOTH = ("xla", "mosaic_tpu")


def choice(file: Path | None, watch: Any) -> str:
    return remembered_choice("attention", file, BOTH, watch)


def names_of(model: LoadedModel) -> list[str]:
    return [backend.name for backend in model.backends]


def slow_xla(model: LoadedModel, _shapes: Any, group: int) -> tuple[float, float]:
    """Made-up timings, by which xla is the slower."""
    return 1.0, 9.0 if model.backends[group].name == "xla" else 1.0


class Stopwatch:
    """Made-up timings by backend; an exception is raised. asked: who was timed."""

    def __init__(self, **timings: tuple[float, float] | Exception):
        self.timings, self.asked = timings, []

    def __call__(self, backend: str) -> tuple[float, float]:
        self.asked.append(backend)
        timing = self.timings[backend]
        if isinstance(timing, Exception):
            raise timing
        return timing


@pytest.mark.parametrize(
    ("xla", "mosaic", "chosen"),
    [
        ((3.0, 1.0), (1.0, 2.0), "mosaic_tpu"),
        ((1.0, 1.0), (1.5, 1.0), "xla"),
        ((9.0, 9.0), ValueError("no such tile"), "xla"),
        (NotImplementedError("none"), (9.0, 9.0), "mosaic_tpu"),
    ],
)
def test_the_fastest_that_runs_is_chosen(xla, mosaic, chosen: str):
    assert choice(None, Stopwatch(xla=xla, mosaic_tpu=mosaic)) == chosen


def test_none_that_runs_is_an_error_that_names_each():
    with pytest.raises(RuntimeError, match="xla: a; mosaic_tpu: b"):
        choice(None, Stopwatch(xla=ValueError("a"), mosaic_tpu=TypeError("b\nmore")))


def test_a_fault_of_our_own_is_not_passed_over():
    with pytest.raises(KeyError):
        choice(None, Stopwatch(xla=(1.0, 1.0), mosaic_tpu=KeyError("rows")))


def test_a_choice_is_remembered_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    file, watch = tmp_path / "choice.json", Stopwatch(xla=(3e-3, 1e-3), mosaic_tpu=ValueError("no such tile"))
    with caplog.at_level("INFO"):
        assert choice(file, watch) == choice(file, watch) == "xla"
    assert watch.asked == ["xla", "mosaic_tpu"]
    assert "3000 µs" in caplog.text
    assert "passed over: no such tile" in caplog.text
    assert json.loads(file.read_text())["timings"][1]["error"] == "no such tile"


@pytest.mark.parametrize(("told", "remembered"), [("RESOURCE_EXHAUSTED: 9 GiB", False), ("no such tile", True)])
def test_a_choice_made_for_lack_of_memory_is_not_remembered(told: str, remembered: bool, tmp_path: Path):
    error = jax.errors.JaxRuntimeError(told + "\nand more")
    file, watch = tmp_path / "choice.json", Stopwatch(xla=(9.0, 9.0), mosaic_tpu=error)
    assert choice(file, watch) == "xla"
    assert file.exists() == remembered
    watch.timings["mosaic_tpu"] = (1.0, 1.0)
    assert choice(file, watch) == ("xla" if remembered else "mosaic_tpu")
    assert file.exists()


def test_what_another_version_measured_is_not_remembered(monkeypatch: pytest.MonkeyPatch):
    model = tiny_model()
    key = shapes_digest(model, tiny_shapes(model))
    assert shapes_digest(model, tiny_shapes(model)) == key
    monkeypatch.setattr("jaxinfer.runner.platform.autotune_cache.__version__", "0.0.0")
    assert shapes_digest(model, tiny_shapes(model)) != key


@pytest.mark.parametrize("text", ["", "{}", '{"backend": "triton"}', "[1]"])
def test_an_unusable_note_is_measured_anew(text: str, tmp_path: Path):
    file = tmp_path / "choice.json"
    file.write_text(text)
    assert choice(file, Stopwatch(xla=(2.0, 0.0), mosaic_tpu=(1.0, 0.0))) == "mosaic_tpu"
    assert json.loads(file.read_text())["backend"] == "mosaic_tpu"


def test_the_table_has_a_line_a_backend():
    lines = table([Timing("xla", 1e-3, 2e-3), Timing("mosaic_tpu", error="no")]).splitlines()
    assert [line.split()[0] for line in lines] == ["backend", "xla", "mosaic_tpu"]


@pytest.mark.parametrize(("missing", "chosen"), [(None, "native"), ("not built", "xla")])
def test_auto_on_cpu_is_native_where_it_is_built_without_timing(
    missing: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("jaxinfer.runner.tuning.kernel_backends.unavailable", {"native": missing}.get)
    monkeypatch.setattr("jaxinfer.runner.tuning.attention.time_attention", lambda *_: pytest.fail("it was timed"))
    model = tiny_model((None, 6))
    for asked in ("auto", "xla"):
        found = choose_attention(model, tiny_shapes(model), asked, None)
        names = [chosen if asked == "auto" else "xla"] * 2
        assert found == replace(model, backends=tuple(GroupBackend(name, KVLayout.TOKENS) for name in names))
    half = replace(model, dtype=jnp.dtype("float16"))
    assert names_of(choose_attention(half, tiny_shapes(half), "auto", None)) == ["xla"] * 2
    assert not caplog.text


def test_native_that_is_not_built_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jaxinfer.runner.tuning.kernel_backends.unavailable", lambda _: "they were not built")
    model = tiny_model()
    with pytest.raises(ParameterError, match="attention_backend: they were not built"):
        choose_attention(model, tiny_shapes(model), "native", None)


def test_a_tpu_kernel_on_a_cpu_brings_its_layout(caplog: pytest.LogCaptureFixture):
    model = tiny_model()
    shapes = tiny_shapes(model)
    other = choose_attention(model, shapes, "mosaic_tpu", None)
    assert "mosaic_tpu runs in an interpreter on a CPU" in caplog.text
    assert other.backends == (GroupBackend("mosaic_tpu", KVLayout.HEADS),)


def test_a_kernel_that_cannot_be_compiled_is_passed_over():
    """What Mosaic raises derives from Exception alone."""
    from jax._src.pallas.mosaic.error_handling import MosaicError
    from jax._src.pallas.mosaic.lowering import LoweringException

    for error in (MosaicError("offsets"), LoweringException("no rule"), jax.errors.JaxRuntimeError("VMEM is full")):
        assert choice(None, Stopwatch(xla=(1.0, 1.0), mosaic_tpu=error)) == "xla"


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice takes the device for a GPU."""
    monkeypatch.setattr("jaxinfer.runner.tuning.kernel_backends.platform_of", lambda mesh: "gpu")


@pytest.mark.usefixtures("on_gpu")
def test_what_a_platform_does_not_run_is_refused():
    model = tiny_model()
    with pytest.raises(ParameterError, match="attention_backend: mosaic_tpu does not run on gpu: xla or mosaic_gpu"):
        choose_attention(model, tiny_shapes(model), "mosaic_tpu", None)


@pytest.mark.parametrize("version", [(0, 10, 2), (0, 11, 2)])
def test_a_cpu_is_told_what_it_runs_and_what_is_too_old(version: tuple[int, ...], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "__version_info__", version)
    does = "does not run on cpu: xla or native does, and mosaic_tpu in an interpreter, for tests"
    with pytest.raises(ParameterError, match=does) as refused:
        check_asked("mosaic_gpu", make_mesh())
    assert ("Python 3.12" in str(refused.value)) == (version < (0, 11))
    check_asked("auto", make_mesh())
    check_asked("mosaic_tpu", make_mesh())


@pytest.mark.usefixtures("on_gpu")
def test_what_the_machine_cannot_run_is_passed_over_with_the_reason(monkeypatch, caplog: pytest.LogCaptureFixture):
    """Here there is no Hopper GPU, and perhaps an older JAX."""
    monkeypatch.setattr("jaxinfer.runner.tuning.attention.time_attention", lambda *_: (1.0, 1.0))
    model = tiny_model()
    with caplog.at_level("INFO"):
        assert choose_attention(model, tiny_shapes(model), "auto", None) == model
    assert "passed over: mosaic_gpu needs" in caplog.text
    with pytest.raises(ParameterError, match="attention_backend: mosaic_gpu needs a Hopper GPU"):
        choose_attention(model, tiny_shapes(model), "mosaic_gpu", None)


@pytest.mark.usefixtures("on_gpu")
def test_a_start_with_an_untried_jax_runs_xla_and_says_so(monkeypatch, caplog: pytest.LogCaptureFixture):
    """On a Hopper GPU. Lowering our kernel may not end there, so nobody tries."""
    monkeypatch.setattr(jax, "__version_info__", (0, 13, 0))
    monkeypatch.setattr("jaxinfer.runner.tuning.kernel_backends._of_device", lambda *_: None)
    monkeypatch.setattr("jaxinfer.runner.tuning.attention.time_attention", lambda *_: (1.0, 1.0))
    monkeypatch.setattr("jaxinfer.runner.tuning.attention.check_attention", lambda *_: pytest.fail("it was compiled"))
    model = tiny_model()
    with caplog.at_level("INFO"):
        assert choose_attention(model, tiny_shapes(model), "auto", None) == model
    assert {backend.name for backend in model.backends} == {"xla"}
    assert "attention backend mosaic_gpu is passed over: mosaic_gpu is not tried with jax" in caplog.text
    with pytest.raises(ParameterError, match=r"attention_backend: .* jax 0\.11 and 0\.12 are known to work"):
        choose_attention(model, tiny_shapes(model), "mosaic_gpu", None)


@pytest.mark.few(1)
@pytest.mark.parametrize("layout", [KVLayout.TOKENS, KVLayout.HEADS])
def test_a_backend_is_compared_with_xla(layout: KVLayout):
    model = tiny_model((None, 6))
    for group in range(2):
        model = with_backend(model, group, "xla", layout)
        check_attention(model, tiny_shapes(model), group)


@pytest.mark.few(1)
@pytest.mark.parametrize(("what", "told"), [("results", "its results differ"), ("pages", "does not write the keys")])
@pytest.mark.parametrize("wrong", [0.1, float("nan")])
def test_a_backend_that_is_wrong_is_passed_over(what: str, told: str, wrong: float, monkeypatch: pytest.MonkeyPatch):
    """One value is wrong, of one head of the last token, or of one page."""

    def broken(model: LoadedModel, group: int, scoring: Scoring) -> Any:
        backend = model.backends[group].name
        attend = group_attention(with_backend(model, group, "xla"), group, scoring)

        def attention(*args: Any, **named: Any) -> Any:
            out, pages = attend(*args, **named)
            if backend == "xla":
                return out, pages
            return (out.at[-1, -1, 0].add(wrong), pages) if what == "results" else (out, pages.at[0, 1, -1].add(wrong))

        return attention

    monkeypatch.setattr("jaxinfer.runner.tuning.attention_check.group_attention", broken)
    monkeypatch.setattr("jaxinfer.runner.tuning.kernel_backends.platform_of", lambda mesh: "tpu")
    monkeypatch.setattr("jaxinfer.runner.tuning.attention.time_attention", slow_xla)
    model = tiny_model()
    with pytest.raises(ValueError, match=told):
        check_attention(with_backend(model, 0, "mosaic_tpu"), tiny_shapes(model), 0)
    assert names_of(choose_attention(model, tiny_shapes(model), "auto", None)) == ["xla"]


@pytest.mark.long
def test_rows_of_the_check_are_cut_and_merged_on_a_gpu(monkeypatch: pytest.MonkeyPatch):
    seen: list[RaggedRows] = []

    def recorded(model: LoadedModel, group: int, scoring: Scoring) -> Any:
        attend = group_attention(model, group, scoring)

        def attention(*args: Any, **named: Any) -> Any:
            jax.debug.callback(lambda *rows: seen.append(RaggedRows(*rows)), *args[3])
            return attend(*args, **named)

        return attention

    monkeypatch.setattr("jaxinfer.runner.tuning.attention_check.group_attention", recorded)
    model = tiny_model((None,))
    check_attention(model, tiny_shapes(model, max_model_len=8192, max_num_batched_tokens=512), 0)
    jax.effects_barrier()
    sizes, heads = gpu_blocks(128, 128), 8
    blocks = split_rows(RaggedRows(*map(jnp.asarray, seen[0])), jnp.int32(3), 515, 16 * sizes.warpgroups)
    for rows, keys in zip(blocks, (sizes.keys, sizes.long_keys), strict=True):
        assert rows is not None
        work = work_items(rows, None, keys, heads, sizes.programs, sizes.least)
        assert np.asarray(work.merges)[:, MERGE_PARTS].max() > 1


def test_timing_runs_decode_and_prefill():
    model = tiny_model()
    decode, prefill = time_attention(model, tiny_shapes(model), 0)
    assert decode > 0
    assert prefill > 0


def test_each_kv_group_is_timed_for_all_of_its_layers(monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[int, int]] = []

    def seconds(_model: Any, _block_size: int, group: int, _rows: Any, tokens: int) -> float:
        seen.append((tokens, group))
        return [1.0, 10.0][group]

    monkeypatch.setattr("jaxinfer.runner.tuning.attention_timing._seconds", seconds)
    model = tiny_model((6, None, 6, 6, None))
    shapes = tiny_shapes(model)
    assert [time_attention(model, shapes, group) for group in range(2)] == [(3.0, 3.0), (20.0, 20.0)]
    decode, prefill = shapes.max_num_seqs, shapes.max_num_batched_tokens
    assert seen == [(decode, 0), (prefill, 0), (decode, 1), (prefill, 1)]


def test_each_kv_group_has_a_backend_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """One whose heads a kernel refuses affects no other; groups that are alike are timed once."""
    timed: list[tuple[int, str]] = []

    def seconds(model: LoadedModel, _shapes: Any, group: int) -> tuple[float, float]:
        name = model.backends[group].name
        timed.append((group, name))
        if (group, name) == (0, "mosaic_tpu"):
            raise ValueError("no such tile")
        return (1.0, 2.0 if name == "xla" else 1.0)

    monkeypatch.setattr("jaxinfer.runner.tuning.kernel_backends.platform_of", lambda mesh: "tpu")
    monkeypatch.setattr("jaxinfer.runner.tuning.attention.obstacle", lambda *_: None)
    monkeypatch.setattr("jaxinfer.runner.tuning.attention.check_attention", lambda *_: None)
    monkeypatch.setattr("jaxinfer.runner.tuning.attention.time_attention", seconds)
    model = tiny_model((6, None))
    for _ in range(2):
        found = choose_attention(model, tiny_shapes(model), "auto", tmp_path)
        assert names_of(found) == ["xla", "mosaic_tpu"]
        assert [backend.layout for backend in found.backends] == [KVLayout.TOKENS, KVLayout.HEADS]
    assert timed == [(0, "xla"), (0, "mosaic_tpu"), (1, "xla"), (1, "mosaic_tpu")]


@pytest.mark.long
def test_an_engine_over_the_tpu_kernel_gives_the_tokens_of_xla():
    """Chunked prompts, decode, a prefix hit and a preemption, with a window group, in the interpreter."""
    answers = []
    for backend in BOTH:
        model = tiny_model((None, 6))
        model = choose_attention(model, tiny_shapes(model), backend, None)
        runner = JaxRunner(
            model, tiny_shapes(model, max_num_seqs=2, max_num_batched_tokens=16, block_size=16, blocks=12)
        )
        runner.warm_up(when="lazy")
        core = make_core(runner)
        prompts = [list(range(20, 40)), list(range(20, 43)), [7, 8, 9]]
        requests = [GenerateRequest(str(i), prompt, greedy(5)) for i, prompt in enumerate(prompts)]
        answers.append({key: output.tokens for key, output in drive(core, requests).items()})
    assert answers[0] == answers[1]
    assert all(len(tokens) == 5 for tokens in answers[0].values())


@pytest.mark.long
def test_xla_reads_both_layouts_alike():
    answers = []
    for layout in (KVLayout.TOKENS, KVLayout.HEADS):
        model = tiny_model((None, 6))
        model = replace(model, backends=(GroupBackend("xla", layout),) * 2)
        runner = JaxRunner(model, tiny_shapes(model, max_num_seqs=2, max_num_batched_tokens=16))
        runner.warm_up(when="lazy")
        requests = [
            GenerateRequest("a", list(range(20, 40)), greedy(8)),
            GenerateRequest("b", [7, 8, 9], greedy(8, n=2)),
        ]
        answers.append({key: output.tokens for key, output in drive(make_core(runner), requests).items()})
    assert answers[0] == answers[1]
