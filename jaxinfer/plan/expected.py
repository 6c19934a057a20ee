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
from jaxinfer.plan.work import Rows
from jaxinfer.quantization.array import held_bytes
from jaxinfer.runner.device_weights import device_bytes, placed_plan
from jaxinfer.runner.expert_load import load_shape_of
from jaxinfer.runner.state import zero_slots

_ARGUMENTS = {
    "admit": ("newest", "counts", "history", "params", "tables", "packed"),
    "decode": ("weights", "kv", "tables", "newest", "load", "packed"),
    "mixed": ("weights", "kv", "tables", "newest", "load", "packed"),
    "sample": ("head", "newest", "counts", "history", "params", "masks", "hidden", "scored"),
    "history": ("newest", "counts", "history", "packed"),
    "speculate": ("weights", "head", "kv", "tables", "newest", "counts", "history", "params", "load", "packed"),
    "masks": ("masks", "packed"),
    "copies": ("kv", "packed"),
    "multi_step": ("weights", "head", "kv", "tables", "newest", "counts", "params", "load", "packed"),
}
"""Arguments of each kind of program (`runner/program_table.py`)."""
_ALIASED = {
    "admit": ("newest", "counts", "history", "params", "tables"),
    "decode": ("kv", "tables"),
    "mixed": ("kv", "tables"),
    "sample": ("newest", "counts", "history"),
    "history": ("newest", "counts", "history"),
    "speculate": ("kv", "tables", "newest", "counts", "history"),
    "masks": ("masks",),
    "copies": ("kv",),
    "multi_step": ("kv", "tables", "newest", "counts"),
}
"""Donated arguments, whose memory results take over."""
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
    parts = _parts(plan, kind, size)
    argument, alias = (sum(parts[part] for part in names[kind]) for names in (_ARGUMENTS, _ALIASED))
    exchanges: Counter[tuple[str, int]] = Counter()
    if kind in ("decode", "mixed"):
        rows = Rows(size, 1, 1) if kind == "decode" else Rows(1, size, 0)
        hidden = size * plan.model.config.hidden_size * plan.model.dtype.itemsize
        for one in plan.step(rows).exchanges:
            if one.bytes == hidden:  # rows of a quantised embedding are exchanged as XLA likes
                exchanges[one.kind, one.bytes] += one.count
    return Expected(argument, alias, dict(exchanges))


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


def _parts(plan: MeshPlan, kind: str, size: int) -> dict[str, int]:
    shapes, model, platform = replace(plan.shapes, shards=1), plan.model, plan.chip.platform
    structure = placed_plan(model.config, model.dtype, platform, plan.mesh)
    of_device = partial(device_bytes, platform=platform, mesh=plan.mesh)
    head = structure.head or [one for one in structure.weights if one.path == ("embed",)]
    columns = model.config.table_shape[0] // plan.mesh.shards("vocab")
    state, params, masks, tables = jax.eval_shape(partial(zero_slots, shapes, columns))
    load, numbers = load_shape_of(model.config), partial(held_bytes, platform=platform)
    blocks = zip(plan.memory.blocks, model.kv_bytes, strict=True)
    return {
        "weights": sum(map(of_device, structure.weights)),
        "head": sum(map(of_device, head)),
        "kv": sum(count * shapes.block_size * token for count, token in blocks),
        "tables": sum(numbers(table.shape, table.dtype) for table in tables),
        "newest": numbers(state.newest.shape, state.newest.dtype),
        "counts": numbers(state.counts.shape, state.counts.dtype),
        "history": 0 if state.history is None else numbers(state.history.shape, state.history.dtype),
        "params": numbers(params.shape, params.dtype),
        "masks": numbers(masks.shape, masks.dtype),
        "load": 0 if load is None else numbers(load, state.newest.dtype),
        "hidden": numbers((shapes.max_scored, model.config.hidden_size), model.dtype),
        "scored": numbers((shapes.max_scored, _SCORED), state.newest.dtype),
        "packed": 0 if kind == "sample" else numbers((_packed_size(shapes, kind, size),), state.newest.dtype),
    }


def _packed_size(shapes: EngineShapes, kind: str, size: int) -> int:
    layouts: Any = Layouts(shapes)
    kind = "multi_token" if kind in ("multi_step", "speculate") else kind
    return (getattr(layouts, kind) if kind in ("admit", "copies") else getattr(layouts, kind)(size)).size
