"""Which backend multiplies in layers with experts, from made-up timings; and an engine over a TPU's kernel."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.engine.types import GenerateRequest
from jaxinfer.layers.stack import Layout
from jaxinfer.models.loaded import LoadedModel, random_model
from jaxinfer.runner.experts.load import ExpertLoad
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.programs.key import program_key
from jaxinfer.runner.programs.table import ProgramTable
from jaxinfer.runner.tuning import experts, kernel_backends
from jaxinfer.runner.tuning.attention import choose_attention
from jaxinfer.runner.tuning.experts import check_experts, choose_experts, time_experts
from tests.material import REPOSITORY
from tests.native import needs_native
from tests.runner.tiny import Judge, check_all, drive, experts_model, greedy, make_core, tiny_model, tiny_shapes
from tests.turns import one_of


def quantised(name: str) -> LoadedModel:
    return random_model(experts_model().config.quantised(name), dtype=jnp.dtype("float32"), layout="stacked")


def chosen(model: LoadedModel, asked: Any = "auto", cache: Path | None = None) -> str:
    return choose_experts(model, tiny_shapes(model), asked, cache).experts_backend


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """The device is taken for a TPU whose kernel takes half of xla's time. What was timed: backend, layer, rows."""
    seen: list[tuple[str, int, int]] = []

    def seconds(_model: LoadedModel, backend: str, layer: int, rows: int) -> float:
        seen.append((backend, layer, rows))
        return 2.0 if backend == "xla" else 1.0

    monkeypatch.setattr(kernel_backends, "platform_of", lambda mesh: "tpu")
    monkeypatch.setattr(experts, "obstacle", lambda *_: None)
    monkeypatch.setattr(experts, "interpreted", lambda *_: False)
    monkeypatch.setattr(experts, "check_experts", lambda *_: None)
    monkeypatch.setattr(experts, "time_experts", seconds)
    return seen


def test_the_fastest_is_chosen_and_remembered(timed: list[tuple[str, int, int]], tmp_path: Path):
    model = experts_model()
    shapes = tiny_shapes(model)
    assert [chosen(model, cache=tmp_path) for _ in range(2)] == ["mosaic_tpu"] * 2
    sizes = (shapes.max_num_seqs, shapes.max_num_batched_tokens)
    assert timed == [(backend, 0, rows) for backend in ("xla", "mosaic_tpu") for rows in sizes]


@pytest.mark.usefixtures("timed")
def test_a_kernel_that_is_wrong_is_passed_over(monkeypatch: pytest.MonkeyPatch):
    def wrong(*_: Any) -> None:
        raise ValueError("its results differ")

    monkeypatch.setattr(experts, "check_experts", wrong)
    assert chosen(experts_model()) == "xla"


@pytest.mark.parametrize(("model", "asked"), [(tiny_model(), "auto"), (experts_model(), "xla")], ids=["dense", "xla"])
def test_nothing_is_timed_without_experts_or_where_xla_is_asked_for(model, asked, timed):
    assert chosen(model, asked) == "xla"
    assert not timed


@needs_native
@pytest.mark.parametrize(
    ("quantization", "backend"),
    [("none", "native"), ("int8", "native"), ("int4", "native"), ("int8-w8a8", "native"), ("fp8", "xla")],
)
def test_a_cpu_multiplies_natively_without_timing_what_it_can(
    quantization: str, backend: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(experts, "time_experts", None)
    model = quantised(quantization)
    assert chosen(model) == backend
    assert chosen(model, "native") == backend
    assert chosen(model, "xla") == "xla"
    check_experts(model, backend, 1, 8)


def test_a_cpu_without_native_kernels_multiplies_by_xla(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(experts, "time_experts", None)
    monkeypatch.setattr(kernel_backends, "unavailable", lambda _: "not built")
    assert chosen(experts_model()) == "xla"


@needs_native
def test_experts_in_float16_are_multiplied_by_xla():
    assert chosen(replace(experts_model(), dtype=jnp.dtype("float16"))) == "xla"


def test_a_cpu_interprets_the_kernel_that_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(experts, "time_experts", None)
    assert chosen(experts_model(), "mosaic_tpu") == "mosaic_tpu"


@pytest.mark.few(1)
@pytest.mark.parametrize("layout", ["unrolled", "stacked"])
def test_timing_and_checking_run_the_models_own_layers(layout: Layout, monkeypatch: pytest.MonkeyPatch):
    model = experts_model(layout)
    assert time_experts(model, "xla", 1, 8) > 0
    check_experts(model, "xla", 1, 8)
    layers = experts._layer

    def broken(model: LoadedModel, layer: int, backend: str) -> Any:
        right = layers(model, layer, "xla")
        return right if backend == "xla" else lambda weights, x: right(weights, x).at[-1, 0].add(1.0)

    monkeypatch.setattr(experts, "_layer", broken)
    with pytest.raises(ValueError, match="its results differ"):
        check_experts(model, "mosaic_tpu", 1, 8)


def test_programs_follow_from_the_backend():
    model = experts_model()
    other = choose_experts(model, tiny_shapes(model), "mosaic_tpu", None)
    assert program_key(model, tiny_shapes(model), {}) != program_key(other, tiny_shapes(model), {})


@pytest.mark.long
@pytest.mark.parametrize("layout", ["unrolled", "stacked"])
def test_an_engine_with_experts_gives_the_tokens_of_a_dense_pass(layout: Layout):
    model = experts_model(layout)
    runner = JaxRunner(model, tiny_shapes(model))
    runner.warm_up(when="lazy")
    requests = [GenerateRequest(str(i), list(range(20, 30 + 7 * i)), greedy(8)) for i in range(3)]
    check_all(Judge(model), requests, drive(make_core(runner), requests))


@pytest.mark.long
def test_an_engine_over_the_tpu_kernels_gives_the_tokens_of_xla():
    answers = []
    for backend in ("xla", "mosaic_tpu"):
        model = experts_model()
        shapes = tiny_shapes(model, max_num_seqs=2, max_num_batched_tokens=16, block_size=16, blocks=12)
        model = choose_experts(choose_attention(model, shapes, backend, None), shapes, backend, None)
        assert model.experts_backend == backend
        runner = JaxRunner(model, shapes)
        runner.warm_up(when="lazy")
        requests = [GenerateRequest(str(i), list(range(20, 23 + 17 * i)), greedy(4)) for i in range(2)]
        answers.append({key: output.tokens for key, output in drive(make_core(runner), requests).items()})
    assert answers[0] == answers[1]


def tokens_of(runner: JaxRunner) -> np.ndarray:
    load = runner.status().expert_load
    assert load is not None
    assert load.devices is None
    return load.experts


@pytest.mark.long
@pytest.mark.parametrize("decode_steps", one_of(2, [1, 4]))
def test_the_load_of_experts_counts_every_computed_token_and_no_padding(decode_steps: int):
    model = experts_model()
    runner = JaxRunner(model, tiny_shapes(model, decode_steps=decode_steps))
    runner.warm_up(when="lazy")
    runner._run_all()
    assert not tokens_of(runner).any()
    core = make_core(runner)
    drive(core, [GenerateRequest(str(i), list(range(20, 30 + 7 * i)), greedy(6)) for i in range(3)])
    load = tokens_of(runner)
    tokens = sum(10 + 7 * i + 5 for i in range(3))
    assert load.sum(axis=1).tolist() == [2 * tokens] * 2
    stats = core.stats()
    assert sum(stats.experts.tokens) == 2 * 2 * tokens
    assert stats.experts.imbalance == tuple((load.max(axis=1) / (2 * tokens / 8)).tolist())
    runner.reset()
    assert (tokens_of(runner) == load).all()


def test_counts_go_on_where_the_devices_wrap_around():
    load = ExpertLoad(experts_model())
    for count, total in ((2**32 - 2, 2**32 - 2), (5, 2**32 + 5)):
        load.collect(load.dispatch(jnp.full((2, 8), count, jnp.uint32)))
        found = load.read()
        assert found is not None
        assert (found.experts == total).all()


def test_counts_of_steps_that_were_settled_in_flight_are_read_once():
    load = ExpertLoad(experts_model())
    first, second = (load.dispatch(jnp.full((2, 8), count, jnp.uint32)) for count in (5, 7))
    load.collect(first)
    assert [tokens.tolist() for tokens in load.settle()] == [[7] * 8] * 2
    for step, total in ((None, 7), (second, 7), (load.dispatch(jnp.full((2, 8), 9, jnp.uint32)), 9)):
        if step is not None:
            load.collect(step)
        found = load.read()
        assert found is not None
        assert (found.experts == total).all()


def test_programs_of_a_model_without_experts_have_no_argument_for_their_load():
    dense, experts_ = (ProgramTable(model, tiny_shapes(model)) for model in (tiny_model(), experts_model()))
    for name in (("decode", 8), ("mixed", 64)):
        counts = [
            [leaf for leaf in jax.tree.leaves(table[name].arguments) if leaf.dtype == jnp.uint32]
            for table in (dense, experts_)
        ]
        assert [len(found) for found in counts] == [0, 1]


@pytest.mark.parametrize("compiled", ["v6e mosaic_tpu", "h200 mosaic_gpu", "h200 xla"])
def test_experts_that_are_not_chosen_take_no_temporaries(compiled: str):
    """As scripts/check_programs.py compiled a decode step of one row, with 8 of 8 and 8 of 128 experts."""
    target, backend = compiled.split()
    rows = json.loads((REPOSITORY / "configs/compiled/programs.json").read_text())
    found = {
        row["shape"].split()[2]: row["temporaries"]
        for row in rows
        if row["target"] == target and "experts" in row["shape"] and row["shape"].endswith(backend)
    }
    assert found["128"] - found["8"] < 1 << 20
