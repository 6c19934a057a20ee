"""A report over several MeshPlans: for programs, and as a table of at most 80 columns."""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from operator import attrgetter
from typing import Any, NamedTuple

from jaxinfer.plan.compilation import Compilation
from jaxinfer.plan.drafting import DraftPlan
from jaxinfer.plan.estimate import MeshPlan, StepTime, Term
from jaxinfer.plan.exchange import Exchange
from jaxinfer.plan.hand_over import HandOver
from jaxinfer.plan.search import Limits, best_service, keeps_up
from jaxinfer.plan.service import Service, Workload, decode_round, service

_RATES = {
    "peaks": "memory, products and links at their peak; launches and padding take no time",
    "rates": "memory and products at rates that were measured, links at their peak; launches and padding take no time",
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


class StageReport(NamedTuple):
    """A step in a stage of a pipeline."""

    layers: str
    weights_bytes_per_device: int
    left_bytes: int
    seconds: float
    terms: tuple[Term, ...]


class PipelineReport(NamedTuple):
    """hand_overs: of each stage to the next, and of the last to the first. round_seconds: until each request has one
    token more; bubble: the share of it in which stages wait."""

    stages: list[StageReport]
    hand_overs: tuple[HandOver, ...]
    round_seconds: float
    bubble: float


class DraftedStep(NamedTuple):
    """A decode step of `batch` requests. drafts: of a row, 0 if they do not pay. tokens: that a row gets of it.
    speedup: the gain in tokens a second, as a factor."""

    batch: int
    drafts: int
    tokens: float
    seconds: float
    terms: tuple[Term, ...]
    plain_seconds: float
    speedup: float


class DraftsReport(NamedTuple):
    """by_batch: steps of 1, 2, 4 requests, and so on."""

    by: str
    most: int
    acceptance: float
    weights_bytes_per_device: int
    by_batch: list[DraftedStep]


class ServiceReport(NamedTuple):
    """A `Service`, and what follows from the workload and the price of a chip."""

    batch: int
    ttft: float
    itl: float
    tokens_per_second: float
    requests_per_second: float
    keeps_up: bool
    tokens_per_second_per_chip: float
    cost_per_million_tokens: float | None


class MeshReport(NamedTuple):
    """A mesh for the requests that are asked about. step: of one device, to decode. lacking: bytes that a device lacks
    for one request; remedies: what would make it fit. service: None: none within the limits. curve: for 1, 2, 4
    requests, and so on, to as many as have slots and blocks, whatever the limits. compiled: why nothing was, or None if
    nothing was to be."""

    plan: MeshPlan
    step: StepTime
    collectives: tuple[Exchange, ...]
    lacking: int
    remedies: list[str]
    pipeline: PipelineReport | None
    drafts: DraftsReport | None
    service: ServiceReport | None
    curve: list[Service]
    compiled: Compilation | str | None


class Report(NamedTuple):
    """left_out: meshes that are refused, and why."""

    model: str
    architecture: str
    question: Question
    meshes: list[MeshReport]
    left_out: Mapping[str, str]
    assumptions: list[str]


def report(
    model: str,
    architecture: str,
    plans: Sequence[MeshPlan],
    question: Question,
    remedies_of: Callable[[MeshPlan], list[str]],
    left_out: Mapping[str, str],
    compiled: Sequence[Compilation | str] = (),
) -> Report:
    """Report on meshes, also on those that do not fit. remedies_of: what would make a request fit on a mesh that does
    not hold it. compiled: of the first meshes, or why nothing was; of those that were not to be compiled nothing."""
    every = zip_longest(plans, compiled)
    meshes = [_of_mesh(plan, question, remedies_of, of_compiler) for plan, of_compiler in every]
    rates = [_RATES[name] for name in dict.fromkeys(map(_rates, plans))]
    of_pipelines = [_PIPELINE] if any(plan.stages for plan in plans) else []
    kept = dict.fromkeys(100 * plan.drafter.acceptance for plan in plans if plan.drafter is not None)
    is_measured = any(plan.drafter is not None and plan.chip.measured for plan in plans)
    of_measured = [_MEASURED_DRAFTS] if is_measured else []
    assumptions = [*rates, *ASSUMPTIONS, *of_pipelines, *map(_DRAFTS.format, kept), *of_measured]
    return Report(model, architecture, question, meshes, left_out, assumptions)


def _rates(plan: MeshPlan) -> str:
    return "measured" if plan.chip.measured else "rates" if plan.chip.calibrated else "peaks"


def _of_mesh(
    plan: MeshPlan, question: Question, remedies_of: Callable[[MeshPlan], list[str]], compiled: Compilation | str | None
) -> MeshReport:
    workload, limits = question.workload, question.limits
    tokens, found = workload.tokens_in + workload.tokens_out, best_service(plan, workload, question.batch, limits)
    batch, most = (
        (question.batch if found is None else found.batch),
        service(plan, workload, plan.shapes.all_seqs).batch,
    )
    lacking = 0 if plan.holds(tokens) else max(plan.lacks(tokens), 1)
    return MeshReport(
        plan,
        plan.decode(batch, workload.middle),
        plan.decode_exchanges(batch),
        lacking,
        remedies_of(plan) if lacking else [],
        _pipeline(plan, batch, workload.middle) if plan.stages else None,
        None if plan.drafter is None else _drafts(plan, plan.drafter, batch, workload.middle),
        None if found is None else _service(found, plan.chips, question),
        [service(plan, workload, count) for count in sorted({*_batches(most), min(batch, most)})],
        compiled,
    )


def _pipeline(plan: MeshPlan, batch: int, length: int) -> PipelineReport:
    """Report steps of `batch` requests that have `length` tokens each."""
    rows, found = plan.decode_rows(batch, length), decode_round(plan, batch, length)
    stages = [
        StageReport(one.layers, one.memory.weights, one.memory.left, time.seconds, time.terms)
        for one, time in zip(plan.stages, plan.stage_times(rows), strict=True)
    ]
    return PipelineReport(stages, plan.hand_overs(rows.count), *found)


def _drafts(plan: MeshPlan, drafter: DraftPlan, batch: int, length: int) -> DraftsReport:
    """Report drafting in decode steps of up to `batch` requests that have `length` tokens each."""
    by_batch, asked = [], drafter.speculation
    for count in _batches(batch):
        rows = plan.decode_rows(count, length)
        plain, drafts, tokens = plan.time(rows), 0, 1.0
        step = plain
        if plan.should_draft(rows):
            step, drafts, tokens = plan.draft_time(rows), asked.tokens, drafter.tokens
        speedup = tokens * plain.seconds / step.seconds
        by_batch.append(DraftedStep(count, drafts, tokens, step.seconds, step.terms, plain.seconds, speedup))
    # Of a folder, a hub id or the config.json of a folder the folder's name.
    name = asked.drafter.rstrip("/").removesuffix("/config.json").rpartition("/")[2]
    return DraftsReport(name, asked.tokens, drafter.acceptance, drafter.weight_bytes, by_batch)


def _batches(most: int) -> Iterator[int]:
    """1, 2, 4, and so on, to the most."""
    yield from (1 << power for power in range(most.bit_length()))
    if most & (most - 1):
        yield most


def _service(found: Service, chips: int, question: Question) -> ServiceReport:
    rate, price, workload = found.tokens_per_second / chips, question.price, question.workload
    requests, cost = found.tokens_per_second / workload.tokens_out, price and price / 3600 / rate * 1e6
    return ServiceReport(*found, requests, keeps_up(found, workload), rate, cost)


def values(told: Report) -> dict[str, Any]:
    """Return a report for programs: sizes in bytes, times in seconds; an entry a mesh, of those that do not fit too."""
    return {
        "model": told.model,
        "architecture": told.architecture,
        "batch": told.question.batch,
        "workload": told.question.workload,
        "limits": told.question.limits,
        "meshes": [_values_of_mesh(mesh) for mesh in told.meshes],
        "left_out": told.left_out,
        "assumptions": told.assumptions,
    }


def _values_of_mesh(mesh: MeshReport) -> dict[str, Any]:
    plan, memory = mesh.plan, mesh.plan.memory
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
        "lacking_bytes": mesh.lacking,
        "pages": memory.blocks,
        "page_tokens": plan.shapes.block_size,
        "sequences": plan.holds(plan.shapes.max_model_len),
        "collectives": mesh.collectives,
        "step_seconds": {"seconds": mesh.step.seconds, "terms": mesh.step.terms},
        "bound": mesh.step.bound,
        "pipeline": mesh.pipeline,
        "drafts": mesh.drafts,
        "service": mesh.service,
        "curve": mesh.curve,
        "remedies": mesh.remedies,
        "compiled": mesh.compiled and _values_of_compiler(mesh.compiled),
    }


def _values_of_compiler(found: Compilation | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"programs": [], "problems": {}, "differs": [], "temporaries_told": False, "obstacle": found}
    return {
        "obstacle": None,
        "programs": [{**one._asdict(), "kept": answer.kept} for one, answer in found.programs],
        "problems": found.problems,
        "differs": found.differs,
        "temporaries_told": found.temporaries is not None,
    }


_WIDTH = 80
_COLUMNS = ("mesh", "on", "weights", "left", "requests", "step ms", "bound", "tokens/s", "TTFT ms")
_PRICED = ("mesh", "on", "weights", "cost/M", "requests", "step ms", "bound", "tokens/s", "TTFT ms")
_WORDS = ("mesh", "on", "bound")
"""Columns of words; all others are of numbers, and end in line."""
_BEST = (
    ("least time between tokens", attrgetter("itl"), min),
    ("most tokens a chip", attrgetter("tokens_per_second_per_chip"), max),
    ("cheapest", attrgetter("cost_per_million_tokens"), min),
)


def asked_of(question: Question) -> str:
    """A line: which requests were asked for."""
    work = question.workload
    rate = "" if work.rate is None else f", {work.rate:,.10g} of them a second"
    of_each = f"{work.tokens_in:,} tokens in and {work.tokens_out:,} out{rate}"
    return f"Up to {question.batch:,} requests under way, of {of_each}"


def table(told: Report, *, explain: bool = False) -> Iterator[str]:
    """Lines for people. explain: with the parts of every mesh's step."""
    yield f"{told.model} ({told.architecture})"
    yield asked_of(told.question)
    yield ""
    columns, rows = cells(told.meshes)
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        yield " ".join(map(_cell, columns, row, widths)).rstrip()
    yield ""
    for note in notes(told):
        yield from textwrap.wrap(note, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    if explain:
        for mesh in told.meshes:
            yield from _explained(mesh)
    yield "Weights, and what is left for keys and values: of one device, in units of 1024."
    yield "Requests: as many as have slots and blocks. Assumed for times:"
    yield from (f"- {text}" for text in told.assumptions)


def cells(meshes: Sequence[MeshReport]) -> tuple[Sequence[str], list[list[str]]]:
    """Columns, and a row a mesh."""
    priced = any(mesh.service and mesh.service.cost_per_million_tokens for mesh in meshes)
    columns = _PRICED if priced else _COLUMNS
    return columns, [[found[name] for name in columns] for found in map(_cells, meshes)]


def notes(told: Report) -> Iterator[str]:
    """Sentences below the table."""
    yield from _best(told.meshes)
    yield from (_of_stages(mesh, mesh.pipeline) for mesh in told.meshes if mesh.pipeline and mesh.service)
    yield from (_of_drafts(mesh, mesh.drafts) for mesh in told.meshes if mesh.drafts and mesh.service)
    obstacles: dict[str, list[str]] = {}
    for mesh in told.meshes:
        if isinstance(mesh.compiled, str):
            obstacles.setdefault(mesh.compiled, []).append(mesh.plan.name)
        elif mesh.compiled is not None:
            yield from _of_compiler(mesh.plan, mesh.compiled)
    yield from (f"From shapes alone: {', '.join(names)} ({reason})." for reason, names in obstacles.items())
    yield from (f"Left out: {name} ({reason})" for name, reason in told.left_out.items())


def _cell(column: str, text: str, width: int) -> str:
    return text.ljust(width) if column in _WORDS else text.rjust(width)


def _cells(mesh: MeshReport) -> dict[str, str]:
    plan, found = mesh.plan, mesh.service
    cost = found and found.cost_per_million_tokens
    return {
        "mesh": plan.name,
        "on": str(plan.topology),
        "weights": _size(plan.memory.weights),
        "left": _size(plan.memory.left),
        "cost/M": f"{cost:.2f}" if cost else "-",
        "requests": f"{found.batch:,}" if found else "-",
        "step ms": f"{1e3 * mesh.step.seconds:.2f}" if found else "-",
        "bound": mesh.step.bound if found else "-",
        "tokens/s": f"{found.tokens_per_second:,.0f}" if found else "-",
        "TTFT ms": f"{1e3 * found.ttft:.1f}" if found else "-",
    }


def best_of(meshes: Sequence[MeshReport]) -> list[tuple[MeshReport, ServiceReport]]:
    """Return the meshes that serve the requests; if some of them answer all that come, only these."""
    served = [(mesh, mesh.service) for mesh in meshes if mesh.service]
    return [(mesh, found) for mesh, found in served if found.keeps_up] or served


def _best(meshes: Sequence[MeshReport]) -> Iterator[str]:
    """Yield sentences on the best of several meshes, and on remedies for a mesh without room."""
    served = best_of(meshes)
    if len(served) > 1:
        ranked = [(title, key, of) for title, key, of in _BEST if all(key(found) is not None for _, found in served)]
        best = [(title, of(served, key=lambda one, key=key: key(one[1]))[0]) for title, key, of in ranked]
        text = "; ".join(f"{title}: {mesh.plan.name}" for title, mesh in best)
        yield f"{text[0].upper()}{text[1:]}."
    for mesh in meshes:
        name, found = mesh.plan.name, mesh.service
        if mesh.plan.refused:
            yield f"{name} is not served yet: {mesh.plan.refused}."
        if mesh.lacking:
            helps = f"; fits with {' or '.join(mesh.remedies)}." if mesh.remedies else "."
            yield f"{name} lacks {_size(mesh.lacking)} a device{helps}"
        elif found is None:
            yield f"{name} does not serve even one such request within the limits."
        elif not found.keeps_up:
            yield f"{name} answers {found.requests_per_second:.3g} such requests a second; more come."


def _of_stages(mesh: MeshReport, found: PipelineReport) -> str:
    """Describe the time of a pipeline's stages, and the transfers from one to the next."""
    *onward, back = found.hand_overs
    slowest = max(onward, key=lambda one: one.seconds)
    stages = ", ".join(f"{_ms(one.seconds)} in layers {one.layers}" for one in found.stages)
    waits = f"{_ms(found.round_seconds)} a token, of which stages wait {found.bubble:.0%}"
    handed = f"{_size(slowest.bytes)} handed over in {_ms(slowest.seconds)} ({slowest.over})"
    return f"{mesh.plan.name}: a step takes {stages}; {waits}; {handed}, {_size(back.bytes)} back."


def _of_drafts(mesh: MeshReport, found: DraftsReport) -> str:
    """Describe for how many requests drafts pay, and the gains."""
    runs = [list(run) for _, run in groupby(found.by_batch, key=lambda one: one.drafts)]
    text, most = "; ".join(_of_run(run[0], run[-1]) for run in runs), found.by_batch[-1]
    step = f" The table's step has none; with {_of_drafting_step(most)}." if most.drafts else ""
    return f"{mesh.plan.name}: drafts by {found.by}, {found.most} a row, {text}.{step}"


def _of_drafting_step(found: DraftedStep) -> str:
    """Describe a step with drafts: their number, its time and the tokens that it gives a row."""
    count = f"{found.drafts} draft{'s' if found.drafts > 1 else ''} a row"
    return f"{count} it takes {_ms(found.seconds)} and gives a row {found.tokens:.2f} tokens"


def _of_run(first: DraftedStep, last: DraftedStep) -> str:
    """Describe numbers of requests for all of which drafts pay, or do not."""
    alone = first.batch == last.batch
    requests = f"{first.batch:,}" if alone else f"{first.batch:,} to {last.batch:,}"
    if not first.drafts:
        return f"do not pay for {requests} requests"
    gains = f"x {first.speedup:.2f}" if alone else f"x {first.speedup:.2f} to {last.speedup:.2f}"
    return f"pay for {requests} requests ({gains})"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


def _of_compiler(plan: MeshPlan, found: Compilation) -> Iterator[str]:
    if found.programs:
        seconds, peak = sum(one.seconds for one, _ in found.programs), max(one.peak for one, _ in found.programs)
        agrees = "what they take differs from what was reckoned" if found.differs else "they take what was reckoned"
        known = f", {kept} of them before" if (kept := sum(answer.kept for _, answer in found.programs)) else ""
        yield f"{plan.name}: programs compiled in {seconds:.0f} s{known}, in at most {_size(peak)}; {agrees}."
    if found.programs and found.temporaries is not None:
        told, own = _size(plan.memory.temporaries), _size(plan.estimated_temporaries)
        yield f"{plan.name}: temporaries take {told}, from shapes alone {own}."
    yield from (f"  {text}" for text in found.differs)
    yield from (f"{plan.name}: {program} was not compiled: {reason}." for program, reason in found.problems.items())


def _explained(mesh: MeshReport) -> Iterator[str]:
    plan, memory = mesh.plan, mesh.plan.memory
    yield f"{plan.name}, a decode step of one device{_slowest(mesh)}:"
    yield from map(_of_term, mesh.step.terms)
    for one in mesh.collectives:
        yield f"      {one.count} x {one.kind} of {_size(one.bytes)} along {', '.join(one.axes)}"
    if mesh.pipeline:
        yield "  the stage that has room for the fewest tokens:"
    taken = f"{_size(memory.weights)} weights + {_size(memory.slots)} slots + {_size(memory.temporaries)} temporaries"
    yield f"  memory: {_size(memory.usable)} = {taken} + {_size(memory.left)} left"
    if mesh.drafts and (step := mesh.drafts.by_batch[-1]).drafts:
        yield f"{plan.name}, a decode step of one device; with {_of_drafting_step(step)}:"
        yield from map(_of_term, step.terms)


def _of_term(term: Term) -> str:
    """A line: a part of a step."""
    done = f"{term.ops / 1e9:,.1f} G operations, " if term.ops else ""
    what = f"{done}{_size(int(term.bytes))} ({term.bound})" if term.bytes else term.bound
    return f"  {1e3 * term.seconds:8.3f} ms  {term.name}: {what}"


def _slowest(mesh: MeshReport) -> str:
    """Name the layers of the pipeline stage whose step is reported; empty without a pipeline."""
    if not mesh.pipeline:
        return ""
    return f" of layers {max(mesh.pipeline.stages, key=lambda one: one.seconds).layers}"


def _size(count: int) -> str:
    size, sign = abs(count), "-" if count < 0 else ""
    for unit, scale in (("G", 2**30), ("M", 2**20), ("K", 2**10)):
        if size >= scale:
            return f"{sign}{size / scale:.1f}{unit}"
    return f"{sign}{size}"
