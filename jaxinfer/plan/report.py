"""A report over several MeshPlans: for programs, and as a table of at most 80 columns."""

from collections.abc import Iterator, Sequence
from typing import Any

from jaxinfer.plan.estimate import MeshPlan, Service, StepTime, Workload, service

ASSUMPTIONS = (
    "parts of a step and its exchanges follow one another: nothing overlaps",
    "memory, products and links at their peak; launches and padding take no time",
    "activations stay in caches; sampling exchanges nothing",
    "prompts are computed between the decode steps of other requests",
)


def report(model: str, architecture: str, plans: Sequence[MeshPlan], workload: Workload, batch: int) -> dict[str, Any]:
    """Sizes in bytes, times in seconds; an entry a mesh, of those that do not fit too."""
    return {
        "model": model,
        "architecture": architecture,
        "batch": batch,
        "workload": {"tokens_in": workload.tokens_in, "tokens_out": workload.tokens_out},
        "meshes": [_of_mesh(plan, workload, batch) for plan in plans],
        "assumptions": list(ASSUMPTIONS),
    }


def _of_mesh(plan: MeshPlan, workload: Workload, batch: int) -> dict[str, Any]:
    memory, middle = plan.memory, workload.tokens_in + workload.tokens_out // 2
    found = service(plan, workload, batch)
    step = plan.decode(found.batch or batch, middle)
    return {
        "mesh": plan.name,
        "axes": str(plan.mesh),
        "topology": str(plan.topology),
        "chip": plan.chip.name,
        "chips": plan.chips,
        "devices": plan.mesh.size,
        "dtype": plan.model.dtype.name,
        "weights_bytes_per_device": memory.weights,
        "kv_bytes_per_token_per_device": memory.kv_token,
        "slots_bytes_per_device": memory.slots,
        "temporary_bytes": memory.temporaries,
        "memory_bytes": memory.usable,
        "left_bytes": memory.left,
        "pages": list(memory.blocks),
        "page_tokens": plan.shapes.block_size,
        "sequences": plan.holds(plan.shapes.max_model_len),
        "collectives": [one._asdict() for one in plan.decode_exchanges(found.batch or batch)],
        "step_seconds": _step(step),
        "bound": step.bound,
        "service": _service(found, plan.chips) if found.batch else None,
    }


def _step(step: StepTime) -> dict[str, Any]:
    return {"seconds": step.seconds, "terms": [term._asdict() for term in step.terms]}


def _service(found: Service, chips: int) -> dict[str, Any]:
    return {**found._asdict(), "tokens_per_second_per_chip": found.tokens_per_second / chips}


_COLUMNS = ("mesh", "on", "weights", "left", "requests", "step ms", "bound", "tokens/s", "TTFT ms")
_WORDS = ("mesh", "on", "bound")
"""Columns of words; all others are of numbers, and end in line."""


def table(told: dict[str, Any]) -> Iterator[str]:
    """Lines for people."""
    yield f"{told['model']} ({told['architecture']})"
    work = told["workload"]
    of_each = f"{work['tokens_in']:,} tokens in and {work['tokens_out']:,} out"
    yield f"Up to {told['batch']:,} requests under way, of {of_each}"
    yield ""
    rows = [_COLUMNS, *map(_row, told["meshes"])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield " ".join(map(_cell, _COLUMNS, row, widths)).rstrip()
    yield ""
    yield "Weights, and what is left for keys and values: of one device. Requests: as many"
    yield "as fit. Times are the least that is possible. Assumed:"
    yield from (f"- {text}" for text in told["assumptions"])


def _cell(column: str, text: str, width: int) -> str:
    return text.ljust(width) if column in _WORDS else text.rjust(width)


def _row(mesh: dict[str, Any]) -> tuple[str, ...]:
    found = mesh["service"]
    return (
        mesh["mesh"],
        mesh["topology"],
        _size(mesh["weights_bytes_per_device"]),
        _size(mesh["left_bytes"]),
        f"{found['batch']:,}" if found else "-",
        f"{1e3 * mesh['step_seconds']['seconds']:.2f}",
        mesh["bound"],
        f"{found['tokens_per_second']:,.0f}" if found else "-",
        f"{1e3 * found['ttft']:.1f}" if found else "-",
    )


def _size(count: int) -> str:
    size, sign = abs(count), "-" if count < 0 else ""
    for unit, scale in (("G", 2**30), ("M", 2**20), ("K", 2**10)):
        if size >= scale:
            return f"{sign}{size / scale:.1f}{unit}"
    return f"{sign}{size}"
