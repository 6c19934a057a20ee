"""Memory and exchanges of a mesh's programs, computed from shapes: a compiler must confirm them to the byte."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax

from jaxinfer.engine.step.layouts import Layouts
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.plan.compiled import Compiled, ProgramName
from jaxinfer.plan.estimate import MeshPlan
from jaxinfer.plan.work import ShardRows
from jaxinfer.quantization.array import held_bytes
from jaxinfer.runner.experts.load import load_shape_of
from jaxinfer.runner.fit.device_weights import device_bytes, placed_plan
from jaxinfer.runner.state import zero_slots

_SCORED = 4
"""Numbers of a scored position."""


class Expected(NamedTuple):
    """Bytes of one device. exchanges: (kind, bytes, how often) of every exchange of hidden states."""

    argument: int
    alias: int
    exchanges: dict[tuple[str, int], int]


def expected(plan: MeshPlan, name: ProgramName) -> Expected:
    """Compute the expected figures of one program."""
    kind, size = name
    exchanges: Counter[tuple[str, int]] = Counter()
    if kind in ("decode", "mixed"):
        rows = ShardRows(size, 1, 1) if kind == "decode" else ShardRows(1, size, 0)
        hidden = size * plan.model.config.hidden_size * plan.model.dtype.itemsize
        for one in plan.step(rows).exchanges:
            if one.bytes == hidden:  # rows of a quantised embedding are exchanged as XLA likes
                exchanges[one.kind, one.bytes] += one.count
    return Expected(*_taken(plan, kind, size), dict(exchanges))


def differences(plan: MeshPlan, name: ProgramName, compiled: Compiled) -> Iterator[str]:
    """Yield each difference between a compiler's figures and the expected ones."""
    wanted = expected(plan, name)
    sizes = (("arguments", compiled.argument, wanted.argument), ("aliases", compiled.alias, wanted.alias))
    for what, told, own in sizes:
        if told != own:
            yield f"{compiled.program}: {what} take {told:,} bytes, {own:,} were reckoned"
    found: Counter[tuple[str, int]] = Counter()
    for one in compiled.collectives:
        found[one.kind, one.bytes] += one.count
    for (kind, size), count in wanted.exchanges.items():
        if found[kind, size] != count:
            yield f"{compiled.program}: {found[kind, size]} x {kind} of {size:,} bytes, {count} were reckoned"


def _taken(plan: MeshPlan, kind: str, size: int) -> tuple[int, int]:
    """Return the bytes of a program's arguments (`runner/programs/table.py`), and of those that are donated, whose
    memory results take over."""
    shapes, model, platform = replace(plan.shapes, shards=1), plan.model, plan.chip.platform
    structure = placed_plan(model.config, model.dtype, platform, plan.mesh)
    columns = model.config.table_shape[0] // plan.mesh.shards("vocab")
    state, of_params, of_masks, of_tables = jax.eval_shape(partial(zero_slots, shapes, columns))
    load_shape, of_device = load_shape_of(model.config), partial(device_bytes, platform=platform, mesh=plan.mesh)

    def numbers(*arrays: Any) -> int:
        return sum(held_bytes(one.shape, one.dtype, platform) for one in arrays if one is not None)

    def integers(*shape: int) -> int:
        return held_bytes(shape, state.newest.dtype, platform)

    weights = sum(map(of_device, structure.weights))
    head = sum(map(of_device, structure.head or [one for one in structure.weights if one.path == ("embed",)]))
    blocks = zip(plan.memory.blocks, model.kv_bytes, strict=True)
    kv = sum(count * shapes.block_size * token for count, token in blocks)
    params, masks, tables = numbers(of_params), numbers(of_masks), numbers(*of_tables)
    newest, drawn = numbers(state.newest), numbers(state.newest, state.counts, state.history)
    load = 0 if load_shape is None else integers(*load_shape)
    scored = held_bytes((shapes.max_scored, model.config.hidden_size), model.dtype, platform)
    scored += integers(shapes.max_scored, _SCORED)
    packed = 0 if kind == "sample" else integers(_packed_size(shapes, kind, size))
    donated, others = {
        "admit": (drawn + params + tables, packed),
        "decode": (kv + tables, weights + newest + load + packed),
        "mixed": (kv + tables, weights + newest + load + packed),
        "sample": (drawn, head + params + masks + scored),
        "history": (drawn, packed),
        "speculate": (kv + tables + drawn, weights + head + params + load + packed),
        "masks": (masks, packed),
        "copies": (kv, packed),
        "multi_step": (kv + tables + numbers(state.newest, state.counts), weights + head + params + load + packed),
    }[kind]
    return donated + others, donated


def _packed_size(shapes: EngineShapes, kind: str, size: int) -> int:
    layouts: Any = Layouts(shapes)
    kind = "multi_token" if kind in ("multi_step", "speculate") else kind
    return (getattr(layouts, kind) if kind in ("admit", "copies") else getattr(layouts, kind)(size)).size
