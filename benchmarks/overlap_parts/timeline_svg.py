"""Timelines as SVG: a band of the host and one of the device each, all on one scale."""

from collections.abc import Iterator, Mapping
from html import escape

from benchmarks.overlap_parts.recorder import HOST, Timeline

_WIDTH, _LEFT, _RIGHT = 1100, 120, 20
_COLOURS = {
    "schedule": "#d98200",
    "dispatch": "#f0c419",
    "wait": "#e4e4e4",
    "apply": "#3f8f29",
    "text": "#8e44ad",
    "step": "#0b6e99",
}
_WORDS = {
    "schedule": "schedule",
    "dispatch": "pack, dispatch",
    "wait": "wait for the device",
    "apply": "read results",
    "text": "detokenise",
    "step": "device: a step",
}
_TEXT = 'font-family="sans-serif" fill="#222"'
_BAND, _PART = 26, 104


def draw(lines: Mapping[str, Timeline], title: str) -> str:
    """lines: names, and timelines whose times begin at zero."""
    seconds = max(line.device[-1].end for line in lines.values())
    scale = (_WIDTH - _LEFT - _RIGHT) / seconds
    height = 70 + _PART * len(lines) + 60
    parts = [f'<text x="20" y="32" font-size="17" font-weight="bold" {_TEXT}>{escape(title)}</text>']
    parts += _scale(seconds, 62 + len(lines) * _PART, scale)
    for i, (name, line) in enumerate(lines.items()):
        parts += _part(name, line, 62 + i * _PART, scale)
    parts += _legend(height - 18)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}">'
    return "\n".join([head, f'<rect width="{_WIDTH}" height="{height}" fill="white"/>', *parts, "</svg>", ""])


def _part(name: str, line: Timeline, top: float, scale: float) -> Iterator[str]:
    yield f'<text x="20" y="{top}" font-size="14" font-weight="bold" {_TEXT}>{escape(name)}</text>'
    for row, (who, spans) in enumerate((("host", line.host), ("device", line.device))):
        y = top + 10 + row * (_BAND + 6)
        yield f'<text x="20" y="{y + 18}" font-size="13" {_TEXT}>{who}</text>'
        for span in spans:
            x, width = _LEFT + span.start * scale, max((span.end - span.start) * scale, 0.4)
            label = f"{_WORDS[span.what]}: {1e3 * (span.end - span.start):.2f} ms"
            yield (
                f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_BAND}" fill="{_COLOURS[span.what]}">'
                f"<title>{escape(label)}</title></rect>"
            )


def _scale(seconds: float, top: float, scale: float) -> Iterator[str]:
    step = next(step for step in (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1) if seconds / step <= 14)
    for i in range(int(seconds / step) + 1):
        x = _LEFT + i * step * scale
        yield f'<line x1="{x:.1f}" y1="62" x2="{x:.1f}" y2="{top - 12}" stroke="#dddddd"/>'
        place = f'x="{x:.1f}" y="{top + 4}" font-size="11" text-anchor="middle"'
        yield f"<text {place} {_TEXT}>{1e3 * i * step:g} ms</text>"


def _legend(y: float) -> Iterator[str]:
    for i, name in enumerate((*HOST, "step")):
        x = 20 + i * 170
        yield f'<rect x="{x}" y="{y - 11}" width="14" height="14" fill="{_COLOURS[name]}"/>'
        yield f'<text x="{x + 20}" y="{y + 1}" font-size="13" {_TEXT}>{_WORDS[name]}</text>'
