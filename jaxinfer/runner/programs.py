"""Programs: every program an engine may run, compiled before it is ready."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.engine.buckets import Buckets
from jaxinfer.engine.packing import Layouts
from jaxinfer.engine.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.admit import admit
from jaxinfer.runner.attention import kernel_interpreter
from jaxinfer.runner.compiles import compile_counter
from jaxinfer.runner.forward import Forward, ForwardPrograms, Newest
from jaxinfer.runner.platform import platform_of
from jaxinfer.runner.sample import sample
from jaxinfer.runner.state import zero_params, zero_state, zero_tables

Name = tuple[str, int]
"""A program: ("admit", 0), ("decode", rows), ("mixed", tokens) or ("sample", positions)."""

CompileProgress = Callable[[str, int, int, float, bool], None]
"""progress(program, how many are done, how many there are, seconds it took, whether it came from the cache)."""


_GPU_OPTIONS = {"xla_disable_hlo_passes": "rematerialization"}
"""XLA counts donated KV pages several times over when it looks for memory to save: where they fill a card, it made 190
products and norms of a decode step anew for nothing (Qwen3-0.6B shape compiled for an H200)."""

_MOST_WORKERS = 8


class Program(NamedTuple):
    """A function to compile, the shapes and shardings of its arguments, and which of them are donated."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: tuple[int, ...]
    out_shardings: Any


class LatePrograms(NamedTuple):
    """How many programs were made when they were first needed, and the seconds that it took."""

    count: int
    seconds: float


class Programs:
    """Compiled programs by name. A program never compiles again: other shapes are an error.

    late: those that nothing compiled before they were needed.
    """

    def __init__(self, model: LoadedModel, shapes: EngineShapes, buckets: Buckets, layouts: Layouts, backend: str):
        self._model = model
        self._shapes = shapes
        self._layouts = layouts
        self._forward = ForwardPrograms(model, shapes, layouts, backend)
        self._interpreter = partial(kernel_interpreter, backend, model.mesh)
        self._replicated = NamedSharding(model.mesh, PartitionSpec())
        self._compiled: dict[Name, Any] = {}
        self.late = LatePrograms(0, 0.0)
        self._options = _GPU_OPTIONS if platform_of(model.mesh) == "gpu" else None
        self.names: tuple[Name, ...] = (
            ("admit", 0),
            *(("mixed", size) for size in reversed(buckets.tokens)),
            *(("decode", size) for size in reversed(buckets.rows)),
            *(("sample", size) for size in reversed(buckets.scored)),
        )

    def __getitem__(self, name: Name) -> Any:
        compiled = self._compiled.get(name)
        return compiled if compiled is not None else self._compile_late(name)

    def compile_all(self, progress: CompileProgress | None = None) -> None:
        """Lowers and compiles everything, several at a time, the largest first."""
        workers = max(4, min(os.cpu_count() or 1, _MOST_WORKERS))

        def timed(name: Name) -> tuple[Name, float, bool]:
            start, cached = time.perf_counter(), compile_counter.cached_here
            self._compile(name)
            return name, time.perf_counter() - start, compile_counter.cached_here > cached

        with ThreadPoolExecutor(workers) as pool:
            for done, (name, seconds, cached) in enumerate(pool.map(timed, self.names), start=1):
                if progress is not None:
                    progress(f"{name[0]} {name[1]}".removesuffix(" 0"), done, len(self.names), seconds, cached)

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
        self._compiled[name] = self.compile(name)
        return self._compiled[name]

    def _program(self, kind: str, size: int) -> Program:
        if kind == "admit":
            return self._admit()
        if kind == "sample":
            return self._sample(size)
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
        largest = self._forward_program("mixed", self._shapes.max_num_batched_tokens)
        forward = jax.eval_shape(largest.function, *largest.arguments)
        hidden, scored = jax.tree.map(self._placed, (forward.hidden, forward.scored))
        out = (jax.tree.map(lambda x: x.sharding, state), self._replicated)
        function = _named(partial(sample, self._model, self._shapes, size), f"sample_{size}")
        return Program(function, (head, state, params, hidden, scored), (1,), out)

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


def _like(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Gives the program a name that profiles and HLO dumps show."""

    def named(*arguments: Any) -> Any:
        return function(*arguments)

    named.__name__ = named.__qualname__ = f"jaxinfer_{name}"
    return named
