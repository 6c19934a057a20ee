"""A roofline plot as SVG: FLOPs a byte against FLOPs a second, both logarithmic, under what the device can do."""

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Any, NamedTuple

_WIDTH, _HEIGHT = 960, 600
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 236, 52, 64
_COLOURS = ("#0b6e99", "#c8102e", "#3f8f29", "#8e44ad", "#d98200", "#555555")
_TEXT = 'font-family="sans-serif" fill="#222"'


class Axis(NamedTuple):
    """Powers of ten from `low` to `high`, from pixel `start` to pixel `end`."""

    low: int
    high: int
    start: float
    end: float

    def at(self, value: float) -> float:
        """The pixel of a value."""
        return self.start + (log10(value) - self.low) / (self.high - self.low) * (self.end - self.start)


def draw_roofline(rows: Sequence[dict[str, Any]], bytes_a_second: float, flops_a_second: float, title: str) -> str:
    """rows: of the bench; those with an error, or without products, are left out.

    A colour a backend, a shape a kind of case.
    """
    points = [row for row in rows if "us" in row and row["flops"]]
    x, y = _axes(points, bytes_a_second, flops_a_second)
    parts = [*_frame(x, y, title), *_roofs(x, y, bytes_a_second, flops_a_second)]
    backends = list(dict.fromkeys(row["backend"] for row in points))
    kinds = list(dict.fromkeys(row["kind"] for row in points))
    for row in points:
        colour, kind = _COLOURS[backends.index(row["backend"]) % len(_COLOURS)], kinds.index(row["kind"])
        place = x.at(row["flops"] / row["bytes"]), y.at(_rate(row))
        label = escape(f"{row['case']}, {row['backend']}: {row['us']} us, {100 * row['roof_share']:.0f} % of the roof")
        parts.append(f"<g><title>{label}</title>{_mark(kind, *place, colour)}</g>")
    parts += _legend(backends, kinds)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}">'
    return "\n".join([head, f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>', *parts, "</svg>", ""])


def _rate(row: dict[str, Any]) -> float:
    return row["flops"] / (row["us"] * 1e-6)


def _axes(points: Sequence[dict[str, Any]], bytes_a_second: float, flops_a_second: float) -> tuple[Axis, Axis]:
    """The ridge and every point lie inside, with some room."""
    intensities = [row["flops"] / row["bytes"] for row in points] + [flops_a_second / bytes_a_second]
    rates = [_rate(row) for row in points] + [flops_a_second]
    left, right = floor(log10(min(intensities) * 0.9)), ceil(log10(max(intensities) * 1.2))
    low, high = floor(log10(min(rates) * 0.9)), ceil(log10(max(rates) * 1.2))
    return Axis(left, right, _LEFT, _WIDTH - _RIGHT), Axis(low, high, _HEIGHT - _BOTTOM, _TOP)


def _frame(x: Axis, y: Axis, title: str) -> Iterator[str]:
    yield f'<text x="{_LEFT}" y="28" font-size="16" font-weight="bold" {_TEXT}>{escape(title)}</text>'
    for power in range(x.low, x.high + 1):
        at = x.at(10**power)
        yield _line(at, y.start, at, y.end, "#ddd")
        yield _power(at, y.start + 20, power, "middle")
    for power in range(y.low, y.high + 1):
        at = y.at(10.0**power)
        yield _line(x.start, at, x.end, at, "#ddd")
        yield _power(x.start - 8, at + 4, power, "end")
    middle, height = (x.start + x.end) / 2, (y.start + y.end) / 2
    yield f'<text x="{middle}" y="{_HEIGHT - 18}" font-size="13" text-anchor="middle" {_TEXT}>FLOPs a byte</text>'
    yield (
        f'<text x="24" y="{height}" font-size="13" text-anchor="middle" '
        f'transform="rotate(-90 24 {height})" {_TEXT}>FLOPs a second</text>'
    )


def _roofs(x: Axis, y: Axis, bytes_a_second: float, flops_a_second: float) -> Iterator[str]:
    """Copy bandwidth up to the ridge, then the matmul rate; the slope is cut where it leaves the frame."""
    ridge = flops_a_second / bytes_a_second
    first = max(10.0**x.low, 10.0**y.low / bytes_a_second)
    yield _line(x.at(first), y.at(first * bytes_a_second), x.at(ridge), y.at(flops_a_second), "#222", 2)
    yield _line(x.at(ridge), y.at(flops_a_second), x.end, y.at(flops_a_second), "#222", 2)
    copied, multiplied = f"copy {bytes_a_second / 1e9:.4g} GB/s", f"matmul {flops_a_second / 1e12:.3g} TFLOP/s"
    roof = y.at(flops_a_second) - 7
    yield f'<text x="{x.end - 4}" y="{roof:.1f}" font-size="12" text-anchor="end" {_TEXT}>{multiplied}</text>'
    middle = (first * ridge) ** 0.5
    at, height = x.at(middle), y.at(middle * bytes_a_second) - 12
    yield f'<text x="{at - 8:.1f}" y="{height:.1f}" font-size="12" text-anchor="end" {_TEXT}>{copied}</text>'


def _legend(backends: Sequence[str], kinds: Sequence[str]) -> Iterator[str]:
    left, top = _WIDTH - _RIGHT + 24, _TOP + 12
    for index, name in enumerate(backends):
        at, colour = top + 22 * index, _COLOURS[index % len(_COLOURS)]
        yield f'<rect x="{left - 6}" y="{at - 6}" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{left + 16}" y="{at + 4}" font-size="13" {_TEXT}>{escape(name)}</text>'
    top += 22 * len(backends) + 14
    for index, name in enumerate(kinds):
        yield _mark(index, left, top + 22 * index, "#555")
        yield f'<text x="{left + 16}" y="{top + 22 * index + 4}" font-size="13" {_TEXT}>{escape(name)}</text>'


def _mark(kind: int, x: float, y: float, colour: str) -> str:
    """Circle, square, triangle up, diamond, triangle down, cross, in this order."""
    style = f'fill="{colour}" fill-opacity="0.75" stroke="{colour}"'
    shapes = {
        1: ((-5, -5), (5, -5), (5, 5), (-5, 5)),
        2: ((0, -6), (6, 5), (-6, 5)),
        3: ((0, -7), (6, 0), (0, 7), (-6, 0)),
        4: ((0, 6), (6, -5), (-6, -5)),
        5: ((-6, -2), (-2, -2), (-2, -6), (2, -6), (2, -2), (6, -2), (6, 2), (2, 2), (2, 6), (-2, 6), (-2, 2), (-6, 2)),
    }
    if (corners := shapes.get(kind % 6)) is None:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" {style}/>'
    return f'<polygon points="{" ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)}" {style}/>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int = 1) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def _power(x: float, y: float, power: int, anchor: str) -> str:
    raised = f'10<tspan dy="-6" font-size="9">{power}</tspan>'
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" text-anchor="{anchor}" {_TEXT}>{raised}</text>'
