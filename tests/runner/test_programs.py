"""Making all programs: each once, told in order, and an error ends it."""

import gc
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from jaxinfer.runner.programs import compiled
from jaxinfer.runner.programs.compiled import Programs
from jaxinfer.runner.programs.table import ProgramTable
from tests.runner.tiny import tiny_model, tiny_shapes

MODEL = tiny_model()
SHAPES = tiny_shapes(MODEL, max_num_seqs=2, max_num_batched_tokens=32, few_sizes=False)
LAST = ("sample", 1)


class Fake:
    """Stands for tracing and for what it gives.

    compiled: how often. traced: (name, thread, whether the collector is on) of each. waits_for: what compiling waits
    for, but for `admit`, which waits until everything is traced.
    """

    def __init__(self, fails: Any = None, waits_for: threading.Event | None = None):
        self._all_traced = threading.Event()
        self.compiled: Counter[Any] = Counter()
        self.traced: list[Any] = []
        self._fails = fails
        self._waits_for = waits_for

    def lower(self, name: Any) -> Any:
        self.traced.append((name, threading.get_ident(), gc.isenabled()))
        if name == LAST:
            self._all_traced.set()
        return SimpleNamespace(compile=lambda compiler_options: self._compile(name))

    def _compile(self, name: Any) -> Any:
        if name == self._fails:
            raise RuntimeError(f"no room for {name}")
        if self._waits_for is not None:
            (self._all_traced if name == ("admit", 0) else self._waits_for).wait(10)
        self.compiled[name] += 1
        return name


def fake_programs(monkeypatch: pytest.MonkeyPatch, fake: Fake) -> Programs:
    programs = Programs(MODEL, SHAPES)
    monkeypatch.setattr(programs, "lower", fake.lower)
    return programs


def test_each_program_is_made_once_and_told_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    programs = fake_programs(monkeypatch, fake)
    told: list[Any] = []
    programs.make(programs.names, lambda *said: told.append(said))
    count = len(programs.names)
    assert fake.compiled == dict.fromkeys(programs.names, 1)
    assert [programs[name] for name in programs.names] == list(programs.names)
    assert [(done, total) for _, done, total, _, _ in told] == [(i, count) for i in range(1, count + 1)]
    assert [name for name, *_ in told][:2] == ["admit", "mixed 32"]
    assert [name for name, *_ in fake.traced] == list(programs.names)
    assert 0 < programs.seconds.tracing < programs.seconds.total


def test_one_thread_traces_and_collects_no_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    programs = fake_programs(monkeypatch, fake)
    programs.make(programs.names)
    assert {(thread, collects) for _, thread, collects in fake.traced} == {(threading.get_ident(), False)}
    assert gc.isenabled()


def test_a_program_that_does_not_compile_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = fake_programs(monkeypatch, Fake(fails=("decode", 2)))
    with pytest.raises(RuntimeError, match="no room for"):
        programs.make(programs.names)
    assert gc.isenabled()


def test_an_interrupt_leaves_what_waits_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four threads: one program is made, four are under way, and the others are not begun."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    released = threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, *given: Any, **named: Any) -> None:
            released.set()
            super().shutdown(*given, **named)

    monkeypatch.setattr(compiled, "ThreadPoolExecutor", Pool)
    fake = Fake(waits_for=released)
    programs = fake_programs(monkeypatch, fake)

    def interrupt(*said: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        programs.make(programs.names, interrupt)
    assert gc.isenabled()
    assert sum(fake.compiled.values()) <= 5 < len(programs.names)


def test_the_scored_rows_are_those_of_every_forward() -> None:
    """Sample programs take what any forward gives: the smallest is asked, once."""
    table = ProgramTable(MODEL, SHAPES)
    hidden, scored = table.scored_rows
    for name in table.names:
        if name[0] in ("mixed", "decode"):
            program = table[name]
            given = jax.eval_shape(program.function, *program.arguments)
            for own, known in ((given.hidden, hidden), (given.scored, scored)):
                assert (own.shape, own.dtype) == (known.shape, known.dtype)
