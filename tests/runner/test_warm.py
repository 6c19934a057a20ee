"""After warm-up: nothing compiles, no call leaves the C++ path, no host buffer is written while a step may read it."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.engine.device.calls import Call, sampled_by
from jaxinfer.engine.device.runner import Runner
from jaxinfer.engine.device.wrapping import WrappingRunner
from jaxinfer.engine.step.packed import PackedStep
from jaxinfer.engine.step.plan import StepResult
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.runner import jax_runner
from jaxinfer.runner.jax_runner import Forwarded, JaxRunner
from jaxinfer.sampling import MAX_LOGIT_BIAS, SamplingParams
from tests.models.goldens import GOLDENS, load
from tests.runner.pairwise import pairwise
from tests.runner.tiny import (
    VOCABULARY,
    Judge,
    check_all,
    drive,
    greedy,
    make_core,
    random_prompt,
    seeded,
    tiny_model,
    tiny_shapes,
)

EOS = (9,)

TABLE: dict[str, Sequence[Any]] = {
    "length": [1, 4, 19, 40],
    "max_tokens": [1, 2, 11],
    "temperature": [0.0, 0.7],
    "top_p": [1.0, 0.8],
    "top_k": [0, 1, 10],
    "min_p": [0.0, 0.05],
    "presence_penalty": [0.0, 0.5],
    "frequency_penalty": [0.0, -0.5],
    "repetition_penalty": [1.0, 1.2],
    "logit_bias": [{}, {3: 2.0}, {i: 0.01 * i for i in range(VOCABULARY)}],
    "min_tokens": [0, 1],
    "stop_token_ids": [(), (5, 6), tuple(range(20, 52))],
    "ignore_eos": [False, True],
    "seed": [None, 3, -(2**63)],
    "n": [1, 2, 4],
    "logprobs": [None, 0, 20],
    "prompt_logprobs": [None, 0, 20],
    "cache_salt": ["", "tenant"],
    "stop": [(), ("x",)],
}


@cache
def runner() -> JaxRunner:
    """Two KV groups, prompts of several chunks, blocks for less than four long requests, three decode steps at once."""
    assert MAX_LOGIT_BIAS >= VOCABULARY
    model = tiny_model((None, 12))
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "blocks": 30, "admit_slots": 2, "decode_steps": 3}
    made = JaxRunner(model, tiny_shapes(model, **sizes, few_sizes=False))
    made.warm_up()
    return made


def workload() -> list[GenerateRequest]:
    rng = np.random.default_rng(30)
    prompt = random_prompt(rng, 40)
    made = []
    for i, row in enumerate(pairwise(TABLE)):
        length, salt = row.pop("length"), row.pop("cache_salt")
        own = prompt[:length] if i % 2 else random_prompt(rng, length)
        made.append(GenerateRequest(f"r{i}", own, SamplingParams(**row), cache_salt=salt))
    return made


def serve_everything(ahead: int, chunk: int | None) -> int:
    """Runs the workload with preemptions and aborts on the way. Returns the steps it took."""
    core = make_core(runner(), ahead=ahead, eos=EOS, long_prefill_token_threshold=chunk)

    def between(core, number: int) -> None:
        if number % 17 == 16 and number < 150 and core.scheduler.state.running:
            core.scheduler.state.preempt(core.scheduler.state.running[-1])
        if number in (40, 90):
            core.abort(f"r{number // 4}")

    drive(core, workload(), between)
    return core.stats().core.steps


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("ahead", "chunk"), [(0, None), (1, None), pytest.param(1, 7, marks=pytest.mark.smoke), (3, 1)]
)
def test_nothing_compiles_and_nothing_else_is_dispatched(ahead, chunk, compiles) -> None:
    """With JAX's caches emptied, an eager operation that was used before would have to compile again."""
    device = runner()
    jax.clear_caches()
    compiles.clear()
    at_start = device.status().compiles_after_ready
    assert serve_everything(ahead, chunk) > 30
    assert compiles == []
    assert device.status().compiles_after_ready == at_start
    jnp.add(jnp.arange(3), 1)  # what would have been seen
    assert compiles
    assert device.status().compiles_after_ready > at_start


def test_a_fresh_runner_counts_from_its_readiness() -> None:
    device = runner()
    assert set(device.stages[0].programs._compiled) == set(device.stages[0].programs.names)
    assert len(device.stages[0].programs.names) == 1 + 2 + 3 + 3 + 2 + 1 + 3


@pytest.fixture
def slow_calls(monkeypatch) -> list[int]:
    """Counts calls of compiled programs that leave the C++ path: it hands them to `Compiled.call`."""
    calls: list[int] = []
    original = jax.stages.Compiled.call

    def counted(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        return original(*arguments, **named)

    monkeypatch.setattr(jax.stages.Compiled, "call", staticmethod(counted))
    return calls


@pytest.mark.few(1)
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_calls_stay_on_the_cpp_path(ahead, slow_calls) -> None:
    device = runner()
    assert all(isinstance(program, jax.stages.Compiled) for program in device.stages[0].programs._compiled.values())
    # JAX keeps fast paths of a bounded number of programs, which other tests may have pushed out.
    device._run_all()
    slow_calls.clear()
    assert serve_everything(ahead, None) > 30
    assert slow_calls == []
    program = jax.jit(lambda x: x + 1).lower(jnp.zeros(3)).compile()
    program(jnp.zeros(3))
    assert slow_calls  # the first call of a program is counted


def aligned(like: np.ndarray) -> np.ndarray:
    """A copy that begins at a multiple of 64 bytes, which XLA on CPU reads in place."""
    raw = np.zeros(like.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    view = raw[start : start + like.nbytes].view(like.dtype).reshape(like.shape)
    view[...] = like
    assert view.ctypes.data % 64 == 0
    return view


def test_overwriting_an_aligned_buffer_corrupts_a_running_step() -> None:
    """The hazard is real: this is why `dispatch` may not reuse what it packed into."""

    def slow(matrix: jax.Array, packed: jax.Array) -> jax.Array:
        result, _ = jax.lax.scan(lambda m, _: (jnp.tanh(m @ m), None), matrix, length=60)
        return packed + jnp.where(jnp.isnan(result[0, 0]), 1, 0)

    matrix, packed = jnp.ones((256, 256)) * 1e-3, np.arange(4096, dtype=np.int32)
    program = jax.jit(slow).lower(matrix, packed).compile()
    np.testing.assert_array_equal(program(matrix, packed), packed)
    for _ in range(20):
        buffer = aligned(packed)
        result = program(matrix, buffer)
        buffer[:] = -7
        if (np.asarray(result) == -7).any():
            return
    pytest.skip("this JAX does not read host buffers in place")


class RecordingPrograms:
    """Programs that are given aligned copies of packed arrays. Keeps originals and copies until they are taken."""

    def __init__(self, programs: Any):
        self._programs = programs
        self.originals: list[np.ndarray] = []
        self.copies: list[np.ndarray] = []

    def __getitem__(self, name: tuple[str, int]) -> Any:
        program = self._programs[name]

        def call(*arguments: Any) -> Any:
            *others, last = arguments
            if isinstance(last, np.ndarray):
                self.originals.append(last)
                self.copies.append(aligned(last))
                last = self.copies[-1]
            return program(*others, last)

        return call

    def taken(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return both since the last call."""
        taken, self.originals, self.copies = (self.originals, self.copies), [], []
        return taken


class OverwritingRunner(WrappingRunner):
    """A runner that writes over whatever a step was given, once it has been collected. every: all original arrays."""

    def __init__(self, runner: Runner, recorder: RecordingPrograms):
        super().__init__(runner)
        self._recorder, self._given = recorder, dict[int, list[np.ndarray]]()
        self.every: list[np.ndarray] = []

    def submit(self, call: Call) -> None:
        super().submit(call)
        if (index := sampled_by(call)) is not None:
            originals, copies = self._recorder.taken()
            self._given[index] = originals + copies
            self.every += originals

    def collect(self, index: int) -> StepResult:
        result = super().collect(index)
        for array in self._given.pop(index):
            array[:] = 2**31 - 1
        return result


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_each_step_packs_into_a_fresh_array(ahead, monkeypatch) -> None:
    """No array is used twice, and one may be written over once its step was collected, without harm."""
    device = runner()
    recorder = RecordingPrograms(device.stages[0].programs)
    monkeypatch.setattr(device.stages[0], "programs", recorder)
    overwriting = OverwritingRunner(device, recorder)
    rng = np.random.default_rng(31)
    requests = [
        GenerateRequest(f"r{i}", random_prompt(rng, 3 + 9 * i), seeded(12, i) if i % 2 else greedy(12))
        for i in range(6)
    ]
    outputs = drive(make_core(overwriting, ahead=ahead), requests)
    check_all(Judge(device.stages[0].model), requests, outputs)
    assert len(overwriting.every) > 15
    spans = sorted((array.ctypes.data, array.ctypes.data + array.nbytes) for array in overwriting.every)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


@pytest.mark.long
def test_lazy_compiling_compiles_only_what_runs() -> None:
    model = tiny_model()
    shapes = tiny_shapes(model, max_num_seqs=2, max_num_batched_tokens=16, blocks=30, few_sizes=False)
    lazy = JaxRunner(model, shapes)
    lazy.warm_up(when="lazy")
    assert lazy.status().compiles_after_ready == 0
    assert not lazy.stages[0].programs._compiled
    drive(make_core(lazy), [GenerateRequest("r", [1, 2, 3], greedy(3))])
    assert set(lazy.stages[0].programs._compiled) == {("admit", 0), ("mixed", 16), ("decode", 1), ("sample", 1)}
    assert lazy.status().compiles_after_ready >= 4
    assert lazy.late_programs.count == 4
    assert lazy.late_programs.seconds > 0
    again = [replace(GenerateRequest("r", [4, 2, 3], greedy(3)), request_id=name) for name in "ab"]
    drive(make_core(lazy), again[:1])
    compiled = dict(lazy.stages[0].programs._compiled)
    drive(make_core(lazy), again[1:])
    assert lazy.stages[0].programs._compiled == compiled
    assert lazy.late_programs.count == len(compiled)


@pytest.mark.few(1)
@pytest.mark.parametrize(("num_hosts", "runs"), [(1, {1}), (2, {2})])
def test_several_hosts_run_each_forward_pass_equally_often(
    num_hosts: int, runs: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes on each: one alone spares itself the second run of a slow one."""
    monkeypatch.setattr(jax_runner, "_LONG_RUN", 0.0)
    monkeypatch.setattr(jax, "process_count", lambda: num_hosts)
    model = tiny_model((None,))
    warming = JaxRunner(model, tiny_shapes(model, max_num_seqs=1, max_num_batched_tokens=16, few_sizes=False))
    calls: Counter[tuple[str, int]] = Counter()
    forward = warming.begin

    def counting(step: PackedStep) -> Forwarded:
        calls[step.kind, step.bucket] += 1
        return forward(step)

    monkeypatch.setattr(warming, "begin", counting)
    warming.warm_up()
    assert set(calls.values()) == runs


def test_with_few_sizes_a_forward_pass_is_timed_over_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding costs nothing there. What the row leaves behind changes no draw."""
    model = tiny_model((None,))
    shapes = tiny_shapes(model, max_num_seqs=1, max_num_batched_tokens=16)
    warming, rows = JaxRunner(model, shapes), dict[tuple[str, int], list[int]]()
    forward = warming.begin

    def counting(step: PackedStep) -> Forwarded:
        rows.setdefault((step.kind, step.bucket), []).append(step.num_rows)
        return forward(step)

    monkeypatch.setattr(warming, "begin", counting)
    warming.warm_up()
    assert rows.keys() == warming.step_seconds.keys()
    assert all(counts == [0, 1] for counts in rows.values())
    requests = [GenerateRequest("a", random_prompt(np.random.default_rng(1), 20), seeded(6, 3))]
    check_all(Judge(model), requests, drive(make_core(warming), requests))


@pytest.mark.long
def test_rows_that_are_timed_are_no_load_of_experts() -> None:
    model = load(GOLDENS / "mixtral")
    runner = JaxRunner(model, tiny_shapes(model, max_num_seqs=1, max_num_batched_tokens=16, blocks=60))
    runner.warm_up()
    drive(make_core(runner), [GenerateRequest("a", [3, 4, 5, 6], greedy(3))])
    found, experts = runner.status().expert_load, model.config.layers[0].experts
    assert found is not None
    assert experts is not None
    assert (found.experts.sum(axis=1) == experts.chosen * (4 + 2)).all()
