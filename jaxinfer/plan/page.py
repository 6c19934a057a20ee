"""A report as one page of HTML, which loads nothing."""

from collections.abc import Iterator, Sequence
from html import escape

from jaxinfer.plan.charts import Bar, ChartLine, Scale, bar_chart, line_chart
from jaxinfer.plan.report import MeshReport, Report, asked_of, cells, notes

_STYLE = """
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; font: 16px/1.5 system-ui, sans-serif; color: #222; }
h1 { overflow-wrap: anywhere; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #e2e2e2; white-space: nowrap; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
.wide { overflow-x: auto; }
svg { width: 100%; height: auto; margin: 1rem 0; border: 1px solid #e2e2e2; border-radius: 6px; }
"""


def page(told: Report) -> str:
    """Return a report as HTML."""
    return "\n".join(_lines(told)) + "\n"


def _lines(told: Report) -> Iterator[str]:
    title, meshes = f"{told.model}: what it takes of meshes", told.meshes
    yield '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>"
    yield f"<h1>{escape(title)}</h1>"
    yield f"<p>{escape(told.architecture)}. {asked_of(told.question)}. Times are reckoned:"
    yield "nothing was run, and an engine takes longer. What is assumed is told at the end.</p>"
    yield from _table(*cells(meshes))
    yield "".join(f"<p>{escape(note)}</p>" for note in notes(told))
    curves = [curve for mesh in meshes if (curve := _curve(mesh)).points]
    if curves:
        yield line_chart("Throughput against time between tokens", _BETWEEN, _RATE, curves)
    served = [mesh for mesh in meshes if mesh.service]
    if served:
        yield bar_chart("A decode step, ms", [bar for mesh in served for bar in _steps(mesh)], "{:.2f}".format)
    yield bar_chart(
        "Memory of a device, GiB; the line: what may be taken", [_memory(m) for m in meshes], "{:.1f}".format
    )
    yield "<p>Assumed:</p><ul>" + "".join(f"<li>{escape(text)}</li>" for text in told.assumptions) + "</ul>"


_BETWEEN = Scale("ms between two tokens of a request", log=True)
_RATE = Scale("tokens a second and chip", log=True)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield '<div class="wide"><table><tr>' + "".join(f"<th>{escape(name)}</th>" for name in columns) + "</tr>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
    yield "</table></div>"


def _curve(mesh: MeshReport) -> ChartLine:
    """From one request to as many as are asked for."""
    found = [one for one in mesh.curve if one.itl > 0]
    points = tuple((1e3 * one.itl, one.tokens_per_second / mesh.plan.chips) for one in found)
    hints = tuple(
        f"{one.batch:,} requests, {px:.2f} ms, {py:,.0f} tokens a second and chip"
        for one, (px, py) in zip(found, points, strict=True)
    )
    return ChartLine(mesh.plan.name, points, hints)


def _steps(mesh: MeshReport) -> Iterator[Bar]:
    """A bar; of a pipeline one a stage."""
    name, stages = mesh.plan.name, mesh.pipeline.stages if mesh.pipeline else ()
    for title, terms in [(f"{name} {one.layers}", one.terms) for one in stages] or [(name, mesh.step.terms)]:
        yield Bar(title, tuple((term.name, 1e3 * term.seconds) for term in terms))


def _memory(mesh: MeshReport) -> Bar:
    memory = mesh.plan.memory
    taken = (memory.weights, memory.slots, memory.temporaries, max(memory.left, 0))
    names = ("weights", "slots", "temporaries", "KV blocks")
    parts = tuple((name, size / 2**30) for name, size in zip(names, taken, strict=True))
    return Bar(mesh.plan.name, parts, memory.usable / 2**30)
