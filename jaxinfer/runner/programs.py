"""Programs: every program an engine may run, compiled before it is ready."""

import gc
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.config import RunnerConfig
from jaxinfer.engine.buckets import Buckets
from jaxinfer.engine.packing import Layouts
from jaxinfer.engine.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.admit import admit
from jaxinfer.runner.attention import kernel_interpreter
from jaxinfer.runner.burst import Burst, BurstProgram
from jaxinfer.runner.compiles import compile_counter
from jaxinfer.runner.forward import Forward, ForwardPrograms, Newest
from jaxinfer.runner.platform import platform_of
from jaxinfer.runner.program_store import ProgramStore
from jaxinfer.runner.sample import sample
from jaxinfer.runner.state import zero_params, zero_state, zero_tables
from jaxinfer.runner.xla_options import Options, compiler_options
from jaxinfer.version import __version__

Name = tuple[str, int]
"""A program: ("admit", 0), ("decode", rows), ("mixed", tokens), ("sample", positions) or ("burst", rows)."""

CompileProgress = Callable[[str, int, int, float, bool], None]
"""progress(program, how many are done, how many there are, seconds it took, whether it came from the cache)."""


_MOST_WORKERS = 8
_VERSION = __version__.replace(".", "_")


class Program(NamedTuple):
    """A function to compile, the shapes and shardings of its arguments, and which of them are donated."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: tuple[int, ...]
    out_shardings: Any


class Made(NamedTuple):
    """A program that was made, the seconds that it took, and whether it came from the cache."""

    name: Name
    seconds: float
    cached: bool


class MakingSeconds(NamedTuple):
    """Seconds of making every program: those of tracing and lowering, and all."""

    tracing: float
    total: float


class LatePrograms(NamedTuple):
    """How many programs were made when they were first needed, and the seconds that it took."""

    count: int
    seconds: float


class Programs:
    """Compiled programs by name. A program never compiles again: other shapes are an error.

    options: of XLA, by default what the engine sets on the model's platform. store: where programs are kept from one
    start to the next, by default nowhere. late: those that nothing compiled before
    they were needed. seconds: what `compile_all` took.
    """

    def __init__(
        self,
        model: LoadedModel,
        shapes: EngineShapes,
        buckets: Buckets,
        layouts: Layouts,
        backend: str,
        options: Options | None = None,
        store: ProgramStore | None = None,
    ):
        self._model = model
        self._store = store
        self._shapes = shapes
        self._layouts = layouts
        self._forward = ForwardPrograms(model, shapes, layouts, backend)
        self._burst = BurstProgram(model, shapes, layouts, self._forward)
        self._interpreter = partial(kernel_interpreter, backend, model.mesh)
        self._replicated = NamedSharding(model.mesh, PartitionSpec())
        self._compiled: dict[Name, Any] = {}
        self.late = LatePrograms(0, 0.0)
        self.seconds = MakingSeconds(0.0, 0.0)
        self._options = dict(compiler_options(platform_of(model.mesh), RunnerConfig()) if options is None else options)
        self.names: tuple[Name, ...] = (
            ("admit", 0),
            *(("mixed", size) for size in reversed(buckets.tokens)),
            *(("decode", size) for size in reversed(buckets.rows)),
            *(("sample", size) for size in reversed(buckets.scored)),
            *(("burst", size) for size in reversed(buckets.rows) if shapes.decode_steps > 1),
        )

    def __getitem__(self, name: Name) -> Any:
        compiled = self._compiled.get(name)
        return compiled if compiled is not None else self._compile_late(name)

    def compile_all(self, progress: CompileProgress | None = None) -> None:
        """Makes everything that is not kept, the largest first."""
        start = time.perf_counter()
        with closing(self._make_all()) as made:
            for done, (name, seconds, cached) in enumerate(made, start=1):
                if progress is not None:
                    progress(f"{name[0]} {name[1]}".removesuffix(" 0"), done, len(self.names), seconds, cached)
        self.seconds = self.seconds._replace(total=time.perf_counter() - start)

    def _make_all(self) -> Generator[Made]:
        workers = max(4, min(os.cpu_count() or 1, _MOST_WORKERS))
        with ThreadPoolExecutor(workers) as pool, _no_collections():
            kept = [name for name in self.names if self._store is not None and name in self._store]
            yield from (made for made in pool.map(self._load, kept) if made is not None)
            yield from self._compile_missing(pool)

    def _compile_missing(self, pool: ThreadPoolExecutor) -> Generator[Made]:
        """This thread traces, one after another, since tracing holds the interpreter's lock; others compile."""
        waiting: deque[Future[Made]] = deque()
        try:
            for name in [name for name in self.names if name not in self._compiled]:
                start = time.perf_counter()
                lowered = self.lower(name)
                tracing = time.perf_counter() - start
                self.seconds = self.seconds._replace(tracing=self.seconds.tracing + tracing)
                waiting.append(pool.submit(self._make, name, lowered, tracing))
                while waiting and waiting[0].done():
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def _load(self, name: Name) -> Made | None:
        start = time.perf_counter()
        loaded = None if self._store is None else self._store.load(name)
        if loaded is None:
            return None
        self._compiled[name] = loaded
        return Made(name, time.perf_counter() - start, True)

    def _make(self, name: Name, lowered: Any, tracing: float) -> Made:
        start = time.perf_counter()
        cached = self._compile_lowered(name, lowered)
        return Made(name, tracing + time.perf_counter() - start, cached)

    def _compile_lowered(self, name: Name, lowered: Any) -> bool:
        """True where JAX's cache had it. Such a one is not kept: on a CPU, XLA cannot write again what it has read."""
        before = compile_counter.cached_here
        self._compiled[name] = lowered.compile(compiler_options=self._options)
        cached = compile_counter.cached_here > before
        if self._store is not None and not cached:
            self._store.save(name, self._compiled[name])
        return cached

    def lower(self, name: Name) -> Any:
        """One program, traced and lowered, not compiled."""
        program = self._program(*name)
        jitted = jax.jit(program.function, donate_argnums=program.donated, out_shardings=program.out_shardings)
        with self._interpreter():
            return jitted.lower(*program.arguments)

    def compile(self, name: Name) -> Any:
        """One program, compiled and not kept."""
        return self.lower(name).compile(compiler_options=self._options)

    def _compile_late(self, name: Name) -> Any:
        start = time.perf_counter()
        compiled = self._compile(name)
        self.late = LatePrograms(self.late.count + 1, self.late.seconds + time.perf_counter() - start)
        return compiled

    def _compile(self, name: Name) -> Any:
        if self._load(name) is None:
            self._compile_lowered(name, self.lower(name))
        return self._compiled[name]

    def _program(self, kind: str, size: int) -> Program:
        if kind == "admit":
            return self._admit()
        if kind == "sample":
            return self._sample(size)
        if kind == "burst":
            return self._burst_program(size)
        return self._forward_program(kind, size)

    def _admit(self) -> Program:
        layout = self._layouts.admit
        state, params, tables = self._state(), self._params(), self._tables()
        arguments = (state, params, tables, self._packed(layout.size))
        out = jax.tree.map(lambda x: x.sharding, (state, params, tables))
        return Program(_named(partial(admit, layout), "admit"), arguments, (0, 1, 2), out)

    def _forward_program(self, kind: str, size: int) -> Program:
        layout = self._layouts.decode(size) if kind == "decode" else self._layouts.mixed(size)
        function = self._forward.decode if kind == "decode" else self._forward.mixed
        state, kv, tables = self._state(), self._kv(), self._tables()
        weights = tuple(_like(weight) for weight in self._model.weights)
        arguments = (weights, kv, tables, Newest(state.length, state.last_token), self._packed(layout.size))
        shardings: list[Any] = [tuple(x.sharding for x in kv), tuple(x.sharding for x in tables)]
        out = Forward(*shardings, *[self._replicated] * 2)
        return Program(_named(partial(function, size), f"{kind}_{size}"), arguments, (1, 2), out)

    def _sample(self, size: int) -> Program:
        state, params = self._state(), self._params()
        head = tuple(_like(leaf) for leaf in self._model.head)
        hidden, scored = self._scored_rows
        out = (jax.tree.map(lambda x: x.sharding, state), self._replicated)
        function = _named(partial(sample, self._model, self._shapes, size), f"sample_{size}")
        return Program(function, (head, state, params, hidden, scored), (1,), out)

    def _burst_program(self, size: int) -> Program:
        weights, head = (tuple(map(_like, arrays)) for arrays in (self._model.weights, self._model.head))
        kv, tables, state = self._kv(), self._tables(), self._state()
        packed = self._packed(self._layouts.burst(size).size)
        arguments = (weights, head, kv, tables, state, self._params(), packed)
        kept = jax.tree.map(lambda x: x.sharding, (kv, tables, state))
        shardings: list[Any] = [*kept, self._replicated]
        out = Burst(*shardings)
        return Program(_named(partial(self._burst, size), f"burst_{size}"), arguments, (2, 3, 4), out)

    @cached_property
    def _scored_rows(self) -> Any:
        """What every forward hands to every sample: the smallest one tells."""
        smallest = self._forward_program(*min((name for name in self.names if name[0] == "decode"), key=itemgetter(1)))
        forward = jax.eval_shape(smallest.function, *smallest.arguments)
        return jax.tree.map(self._placed, (forward.hidden, forward.scored))

    def _state(self) -> Any:
        return jax.tree.map(self._placed, jax.eval_shape(partial(zero_state, self._shapes)))

    def _params(self) -> Any:
        return jax.tree.map(self._placed, jax.eval_shape(partial(zero_params, self._shapes)))

    def _tables(self) -> Any:
        return jax.tree.map(self._placed, jax.eval_shape(partial(zero_tables, self._shapes)))

    def _kv(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        size = self._shapes.page_size
        return tuple(
            jax.ShapeDtypeStruct(
                self._model.kv_shape(index, group.num_pages, size),
                self._model.dtype,
                sharding=self._model.kv_sharding(index, group.num_pages, size),
            )
            for index, group in enumerate(self._shapes.groups)
        )

    def _packed(self, size: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((size,), np.int32, sharding=self._replicated)

    def _placed(self, x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._replicated)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Tracing makes many objects and little garbage in cycles: looking for that took a tenth to a fifth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _like(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Gives the program a name that profiles and HLO dumps show.

    JAX's compile cache goes by it too: another version compiles anew, and its programs can be kept (program_store.py).
    """

    def named(*arguments: Any) -> Any:
        return function(*arguments)

    named.__name__ = named.__qualname__ = f"jaxinfer_{_VERSION}_{name}"
    return named
