"""Stages of pipelines over time as SVG: a band a stage, a colour a step, white where a stage waits."""

from collections.abc import Iterator, Mapping
from html import escape

from jaxinfer.engine.device.simulated_pipeline import SimulatedPipeline, StageRun

_WIDTH, _LEFT, _RIGHT = 1100, 90, 20
_COLOURS = ("#0b6e99", "#d98200", "#3f8f29", "#8e44ad", "#c0392b", "#f0c419", "#16a085", "#7f8c8d")
_TEXT = 'font-family="sans-serif" fill="#222"'
_BAND, _TOP = 20, 56


def draw(pipelines: Mapping[str, SimulatedPipeline], steps: int, title: str) -> str:
    """Draw equal spans of all pipelines, from the middle of their runs: the time of `steps` steps of the first."""
    first = next(iter(pipelines.values()))
    middle = len(first.runs) // first.stages // 2
    seconds = first.runs[(middle + steps) * first.stages].begin - first.runs[middle * first.stages].begin
    height = _TOP + len(pipelines) * ((_BAND + 4) * first.stages + 40) + 20
    parts = [f'<text x="20" y="30" font-size="17" font-weight="bold" {_TEXT}>{escape(title)}</text>']
    top = _TOP
    for name, pipeline in pipelines.items():
        begin = pipeline.runs[len(pipeline.runs) // pipeline.stages // 2 * pipeline.stages].begin
        parts += _part(name, pipeline, begin, seconds, top)
        top += (_BAND + 4) * pipeline.stages + 40
    parts.append(f'<text x="{_LEFT}" y="{height - 8}" font-size="12" {_TEXT}>{1e3 * seconds:.0f} ms</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}">'
    return "\n".join([head, f'<rect width="{_WIDTH}" height="{height}" fill="white"/>', *parts, "</svg>", ""])


def _part(name: str, pipeline: SimulatedPipeline, begin: float, seconds: float, top: float) -> Iterator[str]:
    yield f'<text x="20" y="{top + 8}" font-size="14" font-weight="bold" {_TEXT}>{escape(name)}</text>'
    for stage in range(pipeline.stages):
        y = top + 16 + stage * (_BAND + 4)
        yield f'<text x="20" y="{y + 15}" font-size="12" {_TEXT}>stage {stage}</text>'
        yield f'<rect x="{_LEFT}" y="{y}" width="{_WIDTH - _LEFT - _RIGHT}" height="{_BAND}" fill="#f4f4f4"/>'
    scale = (_WIDTH - _LEFT - _RIGHT) / seconds
    for run in pipeline.runs:
        if run.end > begin and run.begin < begin + seconds:
            yield _box(run, begin, seconds, scale, top + 16)


def _box(run: StageRun, begin: float, seconds: float, scale: float, top: float) -> str:
    start, end = max(run.begin - begin, 0.0), min(run.end - begin, seconds)
    y, colour = top + run.stage * (_BAND + 4), _COLOURS[run.step % len(_COLOURS)]
    return (
        f'<rect x="{_LEFT + start * scale:.2f}" y="{y}" width="{(end - start) * scale:.2f}" height="{_BAND}" '
        f'fill="{colour}" stroke="white" stroke-width="0.5"><title>step {run.step}: '
        f"{1e3 * (run.end - run.begin):.1f} ms</title></rect>"
    )
