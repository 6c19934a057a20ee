"""Programs: every program an engine may run, compiled before it is ready or while it serves."""

import gc
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax

from jaxinfer.config import RunnerConfig
from jaxinfer.engine.device.runner import LatePrograms
from jaxinfer.engine.step.buckets import Buckets, make_buckets
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.platform.compiles import compile_counter
from jaxinfer.runner.platform.mappings import check_mappings
from jaxinfer.runner.platform.values import platform_of
from jaxinfer.runner.platform.xla_options import Options, compiler_options
from jaxinfer.runner.programs.store import ProgramStore
from jaxinfer.runner.programs.table import Name, ProgramTable
from jaxinfer.runner.tuning.kernel_backends import kernel_interpreter

CompileProgress = Callable[[str, int, int, float, bool], None]
"""progress(program, how many are done, how many there are, seconds it took, whether it came from the cache)."""

_MOST_WORKERS = 8
_MAPPINGS_EVERY = 4
"""Programs: to count mappings takes a millisecond for each thousand."""


class MadeProgram(NamedTuple):
    """A program that was made, the seconds that it took, and whether it came from the cache."""

    name: Name
    seconds: float
    cached: bool


class MakingSeconds(NamedTuple):
    """Seconds of making every program: those of tracing and lowering, and all."""

    tracing: float
    total: float


class Programs:
    """Compiled programs by name. A program never compiles again: other shapes are an error.

    options: of XLA, by default what the engine sets on the model's platform. store: where programs are kept from one
    start to the next, by default nowhere; unkept: those that it could not keep. table: what they are, by default those
    of a whole model. late: those that nothing compiled before they were needed. compiling: while one of them is made.
    seconds: what `make` took.
    """

    def __init__(
        self,
        model: LoadedModel,
        shapes: EngineShapes,
        options: Options | None = None,
        store: ProgramStore | None = None,
        table: ProgramTable | None = None,
    ):
        self._shapes, self._store = shapes, store
        self.unkept: set[Name] = set()
        # A name that JAX's cache does not know: what comes from there cannot be kept, since XLA on a CPU writes no
        # program that it has read ("Function … not found" when it is run; jax 0.10.2).
        self._mark = f"_{secrets.token_hex(4)}" if store is not None and store.writable else ""
        self.table = ProgramTable(model, shapes) if table is None else table
        self._interpreter = partial(kernel_interpreter, model)
        self._compiled: dict[Name, Any] = {}
        self.late = LatePrograms()
        self.compiling = False
        self.seconds = MakingSeconds(0.0, 0.0)
        self.options = dict(compiler_options(platform_of(model.mesh), RunnerConfig()) if options is None else options)

    def __getitem__(self, name: Name) -> Any:
        compiled = self._compiled.get(name)
        return compiled if compiled is not None else self._compile_late(name)

    @property
    def names(self) -> tuple[Name, ...]:
        """All programs, the largest of a kind first."""
        return self.names_of(make_buckets(self._shapes))

    def names_of(self, buckets: Buckets) -> tuple[Name, ...]:
        """The programs of some sizes."""
        return self.table.names_of(buckets)

    def kept(self) -> Collection[Name]:
        """Programs that an earlier start has kept."""
        return [] if self._store is None else [name for name in self.names if self._store.has(name)]

    @property
    def made(self) -> Set[Name]:
        """Programs that are there."""
        return self._compiled.keys()

    def make(self, names: Sequence[Name], progress: CompileProgress | None = None) -> None:
        """Reads or compiles programs. Raises JaxinferError where the system has no room."""
        start = time.perf_counter()
        with closing(self._make(names)) as made:
            for done, (name, seconds, cached) in enumerate(made, start=1):
                if done % _MAPPINGS_EVERY == 0:
                    check_mappings()
                if progress is not None:
                    progress(_label(name), done, len(names), seconds, cached)
        self.seconds = self.seconds._replace(total=time.perf_counter() - start)

    def _make(self, names: Sequence[Name]) -> Generator[MadeProgram]:
        workers = max(4, min(os.cpu_count() or 1, _MOST_WORKERS))
        with ThreadPoolExecutor(workers) as pool, no_collections():
            if self._store is not None:
                yield from (made for made in pool.map(self._load, names) if made is not None)
            yield from self._compile_missing(pool, names)

    def _compile_missing(self, pool: ThreadPoolExecutor, names: Sequence[Name]) -> Generator[MadeProgram]:
        """This thread traces, one after another, since tracing holds the interpreter's lock; others compile."""
        waiting: deque[Future[MadeProgram]] = deque()
        try:
            for name in [name for name in names if name not in self._compiled]:
                start = time.perf_counter()
                lowered = self.lower(name)
                tracing = time.perf_counter() - start
                self.seconds = self.seconds._replace(tracing=self.seconds.tracing + tracing)
                waiting.append(pool.submit(self._compile_one, name, lowered, tracing))
                while waiting and waiting[0].done():
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def _load(self, name: Name) -> MadeProgram | None:
        start = time.perf_counter()
        loaded = None if self._store is None else self._store.load(name)
        if loaded is None:
            return None
        self._compiled[name] = loaded
        return MadeProgram(name, time.perf_counter() - start, True)

    def _compile_one(self, name: Name, lowered: Any, tracing: float) -> MadeProgram:
        start = time.perf_counter()
        cached = self._compile_lowered(name, lowered)
        return MadeProgram(name, tracing + time.perf_counter() - start, cached)

    def _compile_lowered(self, name: Name, lowered: Any) -> bool:
        """Compiles a program, and keeps it where there is a store. True where JAX's cache had it."""
        before = compile_counter.cached_here
        self._compiled[name] = lowered.compile(compiler_options=self.options)
        if self._store is not None and self._store.writable and not self._store.save(name, self._compiled[name]):
            self.unkept.add(name)
        return compile_counter.cached_here > before

    def lower(self, name: Name) -> Any:
        """One program, traced and lowered, not compiled."""
        program = self.table[name]
        function = _named(program.function, f"jaxinfer_{_label(name).replace(' ', '_')}{self._mark}")
        jitted = jax.jit(function, donate_argnums=program.donated, out_shardings=program.out_shardings)
        with self._interpreter():
            return jitted.lower(*program.arguments)

    def compile(self, name: Name) -> Any:
        """One program, compiled and not kept."""
        return self.lower(name).compile(compiler_options=self.options)

    def add(self, name: Name) -> None:
        """Reads or compiles one program, in this thread."""
        if self._load(name) is None:
            with no_collections():
                lowered = self.lower(name)
            self._compile_lowered(name, lowered)

    def _compile_late(self, name: Name) -> Any:
        start = time.perf_counter()
        self.compiling = True
        try:
            self.add(name)
        finally:
            self.compiling = False
        self.late = LatePrograms(self.late.count + 1, self.late.seconds + time.perf_counter() - start)
        return self._compiled[name]


@contextmanager
def no_collections() -> Iterator[None]:
    """Tracing makes many objects and little garbage in cycles: looking for that took a tenth to a fifth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _label(name: Name) -> str:
    return f"{name[0]} {name[1]}".removesuffix(" 0")


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function with a name that profiles and HLO dumps show."""

    def named(*arguments: Any) -> Any:
        return function(*arguments)

    named.__name__ = named.__qualname__ = name
    return named
