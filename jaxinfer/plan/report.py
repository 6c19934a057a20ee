"""A report over several MeshPlans: for programs, and as a table of at most 80 columns."""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxinfer.plan.compilation import Compilation
from jaxinfer.plan.compiled import label
from jaxinfer.plan.estimate import MeshPlan
from jaxinfer.plan.page import page
from jaxinfer.plan.search import Limits, best_service, keeps_up
from jaxinfer.plan.service import Service, Workload, decode_round, service

_RATES = {
    "peaks": "memory, products and links at their peak; launches and padding take no time",
    "measured": "memory, plain products, attention of decoding rows, sampling and layers as they were measured, all "
    "else at its peak; launches and padding take no time",
}
ASSUMPTIONS = (
    "parts of a step and its exchanges follow one another: nothing overlaps",
    "activations stay in caches; sampling exchanges nothing",
    "prompts fill steps, in which the other requests decode",
)
_PIPELINE = "a pipeline spreads prompts equally over steps, and hands over beside them"
_MEASURED_DRAFTS = "attention of rows that are checked with their drafts, and heads, at peaks"
_DRAFTS = "of drafts that come after kept ones {:.4g} % are kept; n-grams take no time"


class Question(NamedTuple):
    """batch: requests under way at most. price: of a chip for an hour, in any currency; None: not asked."""

    workload: Workload
    batch: int
    limits: Limits = Limits()
    price: float | None = None


def report(
    model: str,
    architecture: str,
    plans: Sequence[MeshPlan],
    question: Question,
    remedies_of: Callable[[MeshPlan], list[str]],
    left_out: Mapping[str, str],
    compiled: Sequence[Compilation | str] = (),
) -> dict[str, Any]:
    """Sizes in bytes, times in seconds; an entry a mesh, of those that do not fit too. remedies_of: what would make a
    request fit on a mesh that does not hold it. left_out: meshes that are refused, and why. compiled: of the first
    meshes, or why nothing was; of those that were not to be compiled nothing."""
    of_compiler = [_compiled(one) for one in compiled]
    of_compiler += [None] * (len(plans) - len(of_compiler))
    rates = [_RATES[name] for name in dict.fromkeys(map(_rates, plans))]
    of_pipelines = [_PIPELINE] if any(plan.stages for plan in plans) else []
    kept = dict.fromkeys(100 * plan.drafter.acceptance for plan in plans if plan.drafter is not None)
    is_measured = any(plan.drafter is not None and plan.chip.measured for plan in plans)
    of_measured = [_MEASURED_DRAFTS] if is_measured else []
    return {
        "model": model,
        "architecture": architecture,
        "batch": question.batch,
        "workload": question.workload._asdict(),
        "limits": question.limits._asdict(),
        "meshes": [
            {
                **_of_mesh(plan, question),
                "remedies": remedies_of(plan) if _lacks(plan, question) else [],
                "compiled": told,
            }
            for plan, told in zip(plans, of_compiler, strict=True)
        ],
        "left_out": dict(left_out),
        "assumptions": [*rates, *ASSUMPTIONS, *of_pipelines, *map(_DRAFTS.format, kept), *of_measured],
    }


def _rates(plan: MeshPlan) -> str:
    return "measured" if plan.chip.measured else "peaks"


def _lacks(plan: MeshPlan, question: Question) -> int:
    """Bytes that a device lacks for one request."""
    tokens = question.workload.tokens_in + question.workload.tokens_out
    return 0 if plan.holds(tokens) else max(plan.lacks(tokens), 1)


def _of_mesh(plan: MeshPlan, question: Question) -> dict[str, Any]:
    memory, workload = plan.memory, question.workload
    found = best_service(plan, workload, question.batch, question.limits)
    batch = question.batch if found is None else found.batch
    step = plan.decode(batch, workload.middle)
    return {
        "mesh": plan.name,
        "refused": plan.refused,
        "axes": str(plan.mesh),
        "topology": str(plan.topology),
        "chip": plan.chip.name,
        "chips": plan.chips,
        "devices": plan.mesh.size,
        "dtype": plan.model.dtype.name,
        "rates": _rates(plan),
        "weights_bytes_per_device": memory.weights,
        "kv_bytes_per_token_per_device": memory.kv_token,
        "slots_bytes_per_device": memory.slots,
        "temporary_bytes": memory.temporaries,
        "estimated_temporary_bytes": plan.estimated_temporaries,
        "memory_bytes": memory.usable,
        "left_bytes": memory.left,
        "lacking_bytes": _lacks(plan, question),
        "pages": list(memory.blocks),
        "page_tokens": plan.shapes.block_size,
        "sequences": plan.holds(plan.shapes.max_model_len),
        "collectives": [one._asdict() for one in plan.decode_exchanges(batch)],
        "step_seconds": {"seconds": step.seconds, "terms": [term._asdict() for term in step.terms]},
        "bound": step.bound,
        "pipeline": _pipeline(plan, batch, workload.middle) if plan.stages else None,
        "drafts": None if plan.drafter is None else _drafts(plan, batch, workload.middle),
        "service": None if found is None else _service(found, plan.chips, question),
        "curve": [one._asdict() for one in _curve(plan, question)],
    }


def _pipeline(plan: MeshPlan, batch: int, length: int) -> dict[str, Any]:
    """Steps of `batch` requests that have `length` tokens each. hand_overs: of each stage to the next, and of the last
    to the first. round_seconds: until each request has one token more; bubble: the share of it in which stages wait."""
    rows = plan.decode_rows(batch, length)
    found = decode_round(plan, batch, length)
    return {
        "stages": [
            {
                "layers": one.layers,
                "weights_bytes_per_device": one.memory.weights,
                "left_bytes": one.memory.left,
                "seconds": time.seconds,
                "terms": [term._asdict() for term in time.terms],
            }
            for one, time in zip(plan.stages, plan.stage_times(rows), strict=True)
        ],
        "hand_overs": [one._asdict() for one in plan.hand_overs(rows.count)],
        "round_seconds": found.seconds,
        "bubble": found.bubble,
    }


def _folder_name(model: str) -> str:
    """Return the folder's name, given a folder, a hub id or the config.json of a folder."""
    return model.rstrip("/").removesuffix("/config.json").rpartition("/")[2]


def _drafts(plan: MeshPlan, batch: int, length: int) -> dict[str, Any]:
    """Report drafting in decode steps of 1, 2, 4 requests, and so on, to `batch`, that have `length` tokens each: the
    number of drafts a row, 0 if they do not pay, tokens that a row gets of such a step and its seconds, those of a step
    without drafts, and the gain in tokens a second, as a factor."""
    drafter, by_batch = plan.drafter, []
    assert drafter is not None
    for count in _batches(batch):
        rows = plan.decode_rows(count, length)
        plain, drafts, tokens = plan.time(rows), 0, 1.0
        step = plain
        if plan.should_draft(rows):
            step, drafts, tokens = plan.draft_time(rows), drafter.speculation.tokens, drafter.tokens
        by_batch.append(
            {
                "batch": count,
                "drafts": drafts,
                "tokens": tokens,
                "seconds": step.seconds,
                "terms": [term._asdict() for term in step.terms],
                "plain_seconds": plain.seconds,
                "speedup": tokens * plain.seconds / step.seconds,
            }
        )
    return {
        "by": _folder_name(drafter.speculation.drafter),
        "most": drafter.speculation.tokens,
        "acceptance": drafter.acceptance,
        "weights_bytes_per_device": drafter.weight_bytes,
        "by_batch": by_batch,
    }


def _compiled(found: Compilation | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"programs": [], "problems": {}, "differs": [], "temporaries_told": False, "obstacle": found}
    return {
        "obstacle": None,
        "programs": [
            {
                **answer.compiled._asdict(),
                "collectives": [one._asdict() for one in answer.compiled.collectives],
                "kept": answer.kept,
            }
            for answer in found.answers
            if answer.compiled is not None
        ],
        "problems": {label(answer.name): answer.problem for answer in found.answers if answer.compiled is None},
        "differs": list(found.differs),
        "temporaries_told": found.temporaries is not None,
    }


def _curve(plan: MeshPlan, question: Question) -> Iterator[Service]:
    """Yield the service for 1, 2, 4 requests, and so on, up to as many as are asked for and have room; limits do not
    matter."""
    for batch in _batches(service(plan, question.workload, question.batch).batch):
        yield service(plan, question.workload, batch)


def _batches(most: int) -> Iterator[int]:
    """1, 2, 4, and so on, to the most."""
    yield from (1 << power for power in range(most.bit_length()))
    if most & (most - 1):
        yield most


def _service(found: Service, chips: int, question: Question) -> dict[str, Any]:
    rate, price = found.tokens_per_second / chips, question.price
    return {
        **found._asdict(),
        "requests_per_second": found.tokens_per_second / question.workload.tokens_out,
        "keeps_up": keeps_up(found, question.workload),
        "tokens_per_second_per_chip": rate,
        "cost_per_million_tokens": None if price is None else price / 3600 / rate * 1e6,
    }


_WIDTH = 80
_COLUMNS = ("mesh", "on", "weights", "left", "requests", "step ms", "bound", "tokens/s", "TTFT ms")
_PRICED = ("mesh", "on", "weights", "cost/M", "requests", "step ms", "bound", "tokens/s", "TTFT ms")
_WORDS = ("mesh", "on", "bound")
"""Columns of words; all others are of numbers, and end in line."""
_BEST = (
    ("least time between tokens", "itl", min),
    ("most tokens a chip", "tokens_per_second_per_chip", max),
    ("cheapest", "cost_per_million_tokens", min),
)


def asked_of(told: Mapping[str, Any]) -> str:
    """A line: which requests were asked for."""
    work = told["workload"]
    rate = "" if work["rate"] is None else f", {work['rate']:,.10g} of them a second"
    of_each = f"{work['tokens_in']:,} tokens in and {work['tokens_out']:,} out{rate}"
    return f"Up to {told['batch']:,} requests under way, of {of_each}"


def table(told: dict[str, Any], *, explain: bool = False) -> Iterator[str]:
    """Lines for people. explain: with the parts of every mesh's step."""
    yield f"{told['model']} ({told['architecture']})"
    yield asked_of(told)
    yield ""
    columns, rows = _table(told["meshes"])
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        yield " ".join(map(_cell, columns, row, widths)).rstrip()
    yield ""
    for note in _notes(told):
        yield from textwrap.wrap(note, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    if explain:
        for mesh in told["meshes"]:
            yield from _explained(mesh)
    yield "Weights, and what is left for keys and values: of one device, in units of 1024."
    yield "Requests: as many as have slots and blocks. Assumed for times:"
    yield from (f"- {text}" for text in told["assumptions"])


def html(told: dict[str, Any]) -> str:
    """A page for people, which loads nothing."""
    return page(told, asked_of(told), *_table(told["meshes"]), list(_notes(told)))


def _table(meshes: Sequence[dict[str, Any]]) -> tuple[Sequence[str], list[list[str]]]:
    """Columns, and a row a mesh."""
    priced = any(mesh["service"] and mesh["service"]["cost_per_million_tokens"] for mesh in meshes)
    columns = _PRICED if priced else _COLUMNS
    return columns, [[cells[name] for name in columns] for cells in map(_cells, meshes)]


def _notes(told: dict[str, Any]) -> Iterator[str]:
    yield from _best(told["meshes"])
    yield from (_of_stages(mesh) for mesh in told["meshes"] if mesh["pipeline"] and mesh["service"])
    yield from (_of_drafts(mesh) for mesh in told["meshes"] if mesh["drafts"] and mesh["service"])
    obstacles: dict[str, list[str]] = {}
    for mesh in told["meshes"]:
        if mesh["compiled"] is not None:
            yield from _of_compiler(mesh)
            obstacles.setdefault(mesh["compiled"]["obstacle"], []).append(mesh["mesh"])
    yield from (f"From shapes alone: {', '.join(names)} ({reason})." for reason, names in obstacles.items() if reason)
    yield from (f"Left out: {name} ({reason})" for name, reason in told["left_out"].items())


def _cell(column: str, text: str, width: int) -> str:
    return text.ljust(width) if column in _WORDS else text.rjust(width)


def _cells(mesh: dict[str, Any]) -> dict[str, str]:
    found = mesh["service"]
    cost = found and found["cost_per_million_tokens"]
    return {
        "mesh": mesh["mesh"],
        "on": mesh["topology"],
        "weights": _size(mesh["weights_bytes_per_device"]),
        "left": _size(mesh["left_bytes"]),
        "cost/M": f"{cost:.2f}" if cost else "-",
        "requests": f"{found['batch']:,}" if found else "-",
        "step ms": f"{1e3 * mesh['step_seconds']['seconds']:.2f}" if found else "-",
        "bound": mesh["bound"] if found else "-",
        "tokens/s": f"{found['tokens_per_second']:,.0f}" if found else "-",
        "TTFT ms": f"{1e3 * found['ttft']:.1f}" if found else "-",
    }


def best_of(meshes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the meshes that serve the requests; if some of them answer all that come, only these."""
    served = [mesh for mesh in meshes if mesh["service"]]
    return [mesh for mesh in served if mesh["service"]["keeps_up"]] or served


def _best(meshes: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield sentences on the best of several meshes, and on remedies for a mesh without room."""
    served = best_of(meshes)
    if len(served) > 1:
        found = []
        for title, key, of in _BEST:
            if all(mesh["service"][key] is not None for mesh in served):
                best = of(served, key=lambda mesh, key=key: mesh["service"][key])
                found.append(f"{title}: {best['mesh']}")
        text = "; ".join(found)
        yield f"{text[0].upper()}{text[1:]}."
    for mesh in meshes:
        if mesh["refused"]:
            yield f"{mesh['mesh']} is not served yet: {mesh['refused']}."
        if mesh["lacking_bytes"]:
            what = " or ".join(mesh["remedies"])
            helps = f"; fits with {what}." if what else "."
            yield f"{mesh['mesh']} lacks {_size(mesh['lacking_bytes'])} a device{helps}"
        elif not mesh["service"]:
            yield f"{mesh['mesh']} does not serve even one such request within the limits."
        elif not mesh["service"]["keeps_up"]:
            rate = f"{mesh['service']['requests_per_second']:.3g}"
            yield f"{mesh['mesh']} answers {rate} such requests a second; more come."


def _of_stages(mesh: dict[str, Any]) -> str:
    """Describe the time of a pipeline's stages, and the transfers from one to the next."""
    found = mesh["pipeline"]
    *onward, back = found["hand_overs"]
    slowest = max(onward, key=lambda one: one["seconds"])
    stages = ", ".join(f"{_ms(one['seconds'])} in layers {one['layers']}" for one in found["stages"])
    waits = f"{_ms(found['round_seconds'])} a token, of which stages wait {found['bubble']:.0%}"
    handed = f"{_size(slowest['bytes'])} handed over in {_ms(slowest['seconds'])} ({slowest['over']})"
    return f"{mesh['mesh']}: a step takes {stages}; {waits}; {handed}, {_size(back['bytes'])} back."


def _of_drafts(mesh: dict[str, Any]) -> str:
    """Describe for how many requests drafts pay, and the gains."""
    found, runs = mesh["drafts"], []
    for one in found["by_batch"]:
        if not runs or runs[-1][0]["drafts"] != one["drafts"]:
            runs.append((one, one))
        runs[-1] = runs[-1][0], one
    text, most = "; ".join(_of_run(first, last) for first, last in runs), found["by_batch"][-1]
    step = f" The table's step has none; with {_of_drafting_step(most)}." if most["drafts"] else ""
    return f"{mesh['mesh']}: drafts by {found['by']}, {found['most']} a row, {text}.{step}"


def _of_drafting_step(found: dict[str, Any]) -> str:
    """Describe a step with drafts: their number, its time and the tokens that it gives a row."""
    count = f"{found['drafts']} draft{'s' if found['drafts'] > 1 else ''} a row"
    return f"{count} it takes {_ms(found['seconds'])} and gives a row {found['tokens']:.2f} tokens"


def _of_run(first: dict[str, Any], last: dict[str, Any]) -> str:
    """Describe numbers of requests for all of which drafts pay, or do not."""
    alone = first["batch"] == last["batch"]
    requests = f"{first['batch']:,}" if alone else f"{first['batch']:,} to {last['batch']:,}"
    if not first["drafts"]:
        return f"do not pay for {requests} requests"
    gains = f"x {first['speedup']:.2f}" if alone else f"x {first['speedup']:.2f} to {last['speedup']:.2f}"
    return f"pay for {requests} requests ({gains})"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


def _of_compiler(mesh: dict[str, Any]) -> Iterator[str]:
    name, found = mesh["mesh"], mesh["compiled"]
    programs = found["programs"]
    if programs:
        seconds, peak = sum(one["seconds"] for one in programs), max(one["peak"] for one in programs)
        agrees = "what they take differs from what was reckoned" if found["differs"] else "they take what was reckoned"
        known = f", {kept} of them before" if (kept := sum(one["kept"] for one in programs)) else ""
        yield f"{name}: programs compiled in {seconds:.0f} s{known}, in at most {_size(peak)}; {agrees}."
    if programs and found["temporaries_told"]:
        told, own = _size(mesh["temporary_bytes"]), _size(mesh["estimated_temporary_bytes"])
        yield f"{name}: temporaries take {told}, from shapes alone {own}."
    yield from (f"  {text}" for text in found["differs"])
    yield from (f"{name}: {program} was not compiled: {reason}." for program, reason in found["problems"].items())


def _explained(mesh: dict[str, Any]) -> Iterator[str]:
    yield f"{mesh['mesh']}, a decode step of one device{_slowest(mesh)}:"
    yield from map(_of_term, mesh["step_seconds"]["terms"])
    for one in mesh["collectives"]:
        yield f"      {one['count']} x {one['kind']} of {_size(one['bytes'])} along {', '.join(one['axes'])}"
    parts = ("weights_bytes_per_device", "slots_bytes_per_device", "temporary_bytes", "left_bytes")
    weights, slots, temporaries, left = (_size(mesh[name]) for name in parts)
    whole = _size(mesh["memory_bytes"])
    if mesh["pipeline"]:
        yield "  the stage that has room for the fewest tokens:"
    yield f"  memory: {whole} = {weights} weights + {slots} slots + {temporaries} temporaries + {left} left"
    if mesh["drafts"] and (step := mesh["drafts"]["by_batch"][-1])["drafts"]:
        yield f"{mesh['mesh']}, a decode step of one device; with {_of_drafting_step(step)}:"
        yield from map(_of_term, step["terms"])


def _of_term(term: dict[str, Any]) -> str:
    """A line: a part of a step."""
    done = f"{term['ops'] / 1e9:,.1f} G operations, " if term["ops"] else ""
    what = f"{done}{_size(int(term['bytes']))} ({term['bound']})" if term["bytes"] else term["bound"]
    return f"  {1e3 * term['seconds']:8.3f} ms  {term['name']}: {what}"


def _slowest(mesh: dict[str, Any]) -> str:
    """Name the layers of the pipeline stage whose step is reported; empty without a pipeline."""
    if not mesh["pipeline"]:
        return ""
    return f" of layers {max(mesh['pipeline']['stages'], key=lambda one: one['seconds'])['layers']}"


def _size(count: int) -> str:
    size, sign = abs(count), "-" if count < 0 else ""
    for unit, scale in (("G", 2**30), ("M", 2**20), ("K", 2**10)):
        if size >= scale:
            return f"{sign}{size / scale:.1f}{unit}"
    return f"{sign}{size}"
