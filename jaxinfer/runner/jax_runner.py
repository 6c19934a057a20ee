"""JaxRunner: runs step plans on the device."""

import contextlib
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.engine.device.runner import DeviceMemory, LatePrograms
from jaxinfer.engine.step.buckets import bucket_of, bucket_of_plan, make_buckets
from jaxinfer.engine.step.packing import Layouts, Packer
from jaxinfer.engine.step.plan import LogprobArrays, StepPlan, StepResult
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.compiles import compile_counter
from jaxinfer.runner.forward import Newest
from jaxinfer.runner.program_store import ProgramStore
from jaxinfer.runner.programs import CompileProgress, Programs
from jaxinfer.runner.sampler import Sampled
from jaxinfer.runner.state import SlotParams, SlotState, zero_params, zero_state, zero_tables
from jaxinfer.runner.xla_options import Options


class DispatchedStep(NamedTuple):
    """A step under way: what to wait for, and what was drawn (None where nothing was scored)."""

    plan: StepPlan
    waits_for: jax.Array | None
    sampled: Sampled | None


class JaxRunner:
    """Weights, KV pages and slot state of one engine, and the programs over them.

    Everything on the device is updated by donation; steps run in the order of dispatch.
    """

    def __init__(
        self,
        model: LoadedModel,
        shapes: EngineShapes,
        *,
        backend: str = "xla",
        options: Options | None = None,
        store: ProgramStore | None = None,
    ):
        self.shapes = shapes
        self.model = model
        self._buckets = make_buckets(shapes)
        self._layouts = Layouts(shapes)
        self._packer = Packer(shapes, self._layouts)
        self.programs = Programs(model, shapes, self._buckets, self._layouts, backend, options, store)
        self._make_slots = self._compile_slots()
        self._make_pages = self._compile_pages()
        self._state, self._params, self._tables = self._make_slots()
        self._compiles_at_ready = 0

    @cached_property
    def kv(self) -> tuple[jax.Array, ...]:
        """Pages of every group. Made when first used: compiling for a GPU tries products out, and needs room for it."""
        return self._make_pages()

    @property
    def compiles_after_ready(self) -> int:
        """Compilations in this process since `warm_up` ended."""
        return compile_counter.count - self._compiles_at_ready

    @property
    def compiling(self) -> bool:
        """True while a program is made in the midst of a step (`lazy_compile`)."""
        return self.programs.compiling

    @property
    def late_programs(self) -> LatePrograms:
        """Programs that were compiled, or read from the cache, in the midst of a step (`lazy_compile`)."""
        return self.programs.late

    def warm_up(self, progress: CompileProgress | None = None, *, lazy: bool = False) -> None:
        """Compiles every program and runs each once, so that nothing is left to do when requests come."""
        if not lazy:
            self.programs.compile_all(progress)
            self._run_all()
        self._compiles_at_ready = compile_counter.count

    def dispatch(self, plan: StepPlan) -> DispatchedStep:
        for packed in self._packer.admissions(plan.admissions):
            self._admit(packed)
        if not plan.num_rows:
            return DispatchedStep(plan, None, None)
        if plan.burst:
            return self._burst(plan)
        size = bucket_of_plan(plan, self._buckets)
        if plan.decode_only:
            hidden, scored = self._forward("decode", size, self._packer.decode(plan, size))
        else:
            hidden, scored = self._forward("mixed", size, self._packer.mixed(plan, size))
        if not plan.num_scored:
            return DispatchedStep(plan, hidden, None)
        sampled = self._sample(bucket_of(plan.num_scored, self._buckets.scored), hidden, scored)
        sampled.tokens.copy_to_host_async()
        if plan.logprobs:
            for array in sampled.logprobs:
                array.copy_to_host_async()
        return DispatchedStep(plan, None, sampled)

    def collect(self, handle: DispatchedStep) -> StepResult:
        if handle.plan.burst:
            rows, steps = handle.plan.num_rows, np.arange(self.shapes.decode_steps)
            return StepResult(np.asarray(handle.waits_for)[:rows][steps < handle.plan.counts[:, None]], None)
        if handle.sampled is None:
            if handle.waits_for is not None:
                handle.waits_for.block_until_ready()
            return StepResult(np.zeros(0, np.int32), None)
        count = handle.plan.num_scored
        tokens = np.asarray(handle.sampled.tokens)[:count]
        if not handle.plan.logprobs:
            return StepResult(tokens, None)
        return StepResult(tokens, LogprobArrays(*(np.asarray(array)[:count] for array in handle.sampled.logprobs)))

    def reset(self) -> None:
        """Makes pages and slot state anew, with the programs of the first time. Raises where the device is gone.

        The old arrays go first, which leaves room for the new; those that a failed step was given are gone already.
        """
        for array in jax.tree.leaves((self._state, self._params, self._tables, self.kv)):
            with contextlib.suppress(Exception):  # a fault that was reported already; its step must have ended
                array.block_until_ready()
            array.delete()
        self._state, self._params, self._tables = self._make_slots()
        self.kv = self._make_pages()
        jax.block_until_ready((self._state, self._params, self._tables, self.kv))

    def memory(self) -> DeviceMemory:
        """That of the first device; one that has failed tells nothing."""
        told = None
        with contextlib.suppress(Exception):
            told = self.model.mesh.devices.flat[0].memory_stats()
        told = told or {}
        return DeviceMemory(*(told.get(name, 0) for name in ("bytes_in_use", "peak_bytes_in_use", "bytes_limit")))

    def close(self) -> None:
        """Drops the device's arrays."""
        self.kv = ()

    def _admit(self, packed: np.ndarray) -> None:
        program = self.programs["admit", 0]
        self._state, self._params, self._tables = program(self._state, self._params, self._tables, packed)

    def _forward(self, kind: str, size: int, packed: np.ndarray) -> tuple[jax.Array, Any]:
        program, state = self.programs[kind, size], self._state
        newest = Newest(state.length, state.last_token)
        out = program(self.model.weights, self.kv, self._tables, newest, packed)
        self.kv, self._tables = out.kv, out.tables
        return out.hidden, out.scored

    def _burst(self, plan: StepPlan) -> DispatchedStep:
        size = bucket_of_plan(plan, self._buckets)
        return DispatchedStep(plan, self._run_burst(size, self._packer.burst(plan, size)), None)

    def _run_burst(self, size: int, packed: np.ndarray) -> jax.Array:
        program = self.programs["burst", size]
        out = program(self.model.weights, self.model.head, self.kv, self._tables, self._state, self._params, packed)
        self.kv, self._tables, self._state = out.kv, out.tables, out.state
        out.tokens.copy_to_host_async()
        return out.tokens

    def _sample(self, size: int, hidden: jax.Array, scored: Any) -> Sampled:
        program = self.programs["sample", size]
        self._state, sampled = program(self.model.head, self._state, self._params, hidden, scored)
        return sampled

    def _compile_slots(self) -> jax.stages.Compiled:
        def make() -> tuple[SlotState, SlotParams, tuple[jax.Array, ...]]:
            return zero_state(self.shapes), zero_params(self.shapes), zero_tables(self.shapes)

        replicated = NamedSharding(self.model.mesh, PartitionSpec())
        return jax.jit(make, out_shardings=replicated).lower().compile()

    def _compile_pages(self) -> jax.stages.Compiled:
        sizes = [(index, group.num_pages, self.shapes.page_size) for index, group in enumerate(self.shapes.groups)]
        shapes = [self.model.kv_shape(*size) for size in sizes]
        shardings = tuple(self.model.kv_sharding(*size) for size in sizes)

        def make() -> tuple[jax.Array, ...]:
            return tuple(jnp.zeros(shape, self.model.dtype) for shape in shapes)

        return jax.jit(make, out_shardings=shardings).lower().compile()

    def _run_all(self) -> None:
        """Runs every program over padding alone."""
        empty = _empty_plan(len(self.shapes.groups))
        self._admit(self._packer.no_admissions())
        pack = {"decode": self._packer.decode, "mixed": self._packer.mixed}
        runs = [
            self._forward(kind, size, pack[kind](empty, size)) for kind, size in self.programs.names if kind in pack
        ]
        for kind, size in self.programs.names:
            if kind == "sample":
                self._sample(size, *runs[-1]).tokens.block_until_ready()
            if kind == "burst":
                self._run_burst(size, self._packer.burst(empty, size)).block_until_ready()


def _empty_plan(groups: int) -> StepPlan:
    none = np.zeros(0, np.int32)
    return StepPlan(
        index=0,
        admissions=(),
        slots=none,
        serials=none,
        starts=none,
        counts=none,
        scored=none,
        draws=none.astype(bool),
        num_decode=0,
        tokens=none,
        targets=none,
        page_updates=(np.zeros((0, 3), np.int32),) * groups,
        copies=(np.zeros((0, 2), np.int32),) * groups,
        logprobs=False,
    )
