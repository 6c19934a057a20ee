"""Charts as SVG that needs nothing else: lines, and bars of several parts. Imports no jax."""

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import NamedTuple

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#8f6b00")
"""Told apart by people who see few colours, too (Okabe and Ito, https://jfly.uni-koeln.de/color/)."""
_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 190, 52, 52
_BAR, _GAP, _TOTAL, _ROW = 22, 12, 44, 20
_GRID, _INK = "#e2e2e2", "#222222"
_MOST_NAME = 20
"""Characters of a name in a chart."""
_LOG_STEPS = ((1,), (1, 2, 5), *(tuple(x / n for x in range(n, 10 * n)) for n in (1, 2, 10)))
"""Steps whose multiples by powers of ten are marked on an axis, the fewest first."""
_LEAST_TICKS = 3
_DASHES = ("", "6 3", "2 3")
"""Dash patterns of lines, for more lines than there are colours."""


class ChartLine(NamedTuple):
    """points: (x, y), in order. hints: what is told where the pointer rests on a point."""

    name: str
    points: tuple[tuple[float, float], ...]
    hints: tuple[str, ...]


class Scale(NamedTuple):
    """An axis. log: logarithmic, of values above 0, else from 0. ticks: values that are marked, by default round
    ones."""

    title: str
    log: bool = False
    ticks: tuple[float, ...] = ()


class Bar(NamedTuple):
    """parts: (name, value), one after another. limit: marked by a line where it is asked for."""

    name: str
    parts: tuple[tuple[str, float], ...]
    limit: float | None = None


class _Axis(NamedTuple):
    low: float
    high: float
    start: float
    end: float
    log: bool
    marked: tuple[float, ...] = ()

    def at(self, value: float) -> float:
        """The pixel of a value."""
        low, high, value = (math.log10(x) if self.log else x for x in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.marked:
            return [value for value in self.marked if self.low <= value <= self.high]
        if not self.log:
            return _even_ticks(self.high)
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found: list[float] = []
        for steps in _LOG_STEPS:
            found = [x for power in powers for x in (k * 10.0**power for k in steps) if self.low <= x <= self.high]
            if len(found) >= _LEAST_TICKS:
                break
        return found or [self.low, self.high]


def line_chart(title: str, x: Scale, y: Scale, series: Sequence[ChartLine], note: str = "") -> str:
    """A line with dots for each series that has points. note: below the title.

    Raises ValueError for a value of 0 or less on a logarithmic axis.
    """
    series = [one for one in series if one.points]
    across = _axis([px for one in series for px, _ in one.points], x, _LEFT, _WIDTH - _RIGHT)
    up = _axis([py for one in series for _, py in one.points], y, _HEIGHT - _BOTTOM, _TOP)
    parts = [*_grid(across, up), *_titles(title, x, y), *([_text(16, 42, note)] if note else [])]
    for number, one in enumerate(series):
        parts += _line(one, across, up, number)
    parts += _legend([one.name for one in series], _WIDTH - _RIGHT + 16, _TOP)
    return _svg(max(_HEIGHT, _TOP + _ROW * len(series)), title, parts)


def bar_chart(title: str, bars: Sequence[Bar], shown: Callable[[float], str]) -> str:
    """A bar each, from top to bottom. shown: a value as text."""
    names = list(dict.fromkeys(name for bar in bars for name, _ in bar.parts))
    most = max([max(sum(value for _, value in bar.parts), bar.limit or 0.0) for bar in bars], default=0.0) or 1.0
    axis = _Axis(0.0, most, 150, _WIDTH - _RIGHT - _TOTAL, log=False)
    parts = [_text(16, 24, title, bold=True)]
    for number, bar in enumerate(bars):
        parts += _bar(bar, _TOP + number * (_BAR + _GAP), axis, names, shown)
    bottom = _TOP + len(bars) * (_BAR + _GAP)
    parts += _legend(names, _WIDTH - _RIGHT + 16, _TOP)
    return _svg(max(bottom, _TOP + _ROW * len(names)) + 8, title, parts)


def _bar(bar: Bar, top: float, axis: _Axis, names: Sequence[str], shown: Callable[[float], str]) -> Iterator[str]:
    yield _text(axis.start - 8, top + 15, _short(bar.name), anchor="end")
    at = 0.0
    for name, value in bar.parts:
        left, right = axis.at(at), axis.at(at + value)
        at += value
        hint = f"<title>{escape(f'{bar.name}: {name} {shown(value)}')}</title>"
        box = f'x="{left:.1f}" y="{top:.1f}" width="{max(right - left, 0):.1f}" height="{_BAR}"'
        yield f'<rect {box} fill="{_colour(names.index(name))}">{hint}</rect>'
    yield _text(axis.at(max(at, bar.limit or 0.0)) + 6, top + 15, shown(at))
    if bar.limit is not None:
        place, ends = axis.at(bar.limit), f'y1="{top - 4:.1f}" y2="{top + _BAR + 4:.1f}"'
        yield f'<line x1="{place:.1f}" x2="{place:.1f}" {ends} stroke="{_INK}" stroke-width="2"/>'


def _line(one: ChartLine, across: _Axis, up: _Axis, number: int) -> Iterator[str]:
    colour, dashes = _colour(number), _DASHES[number // len(COLOURS) % len(_DASHES)]
    places = [(across.at(px), up.at(py)) for px, py in one.points]
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>'
    for (px, py), hint in zip(places, one.hints, strict=True):
        title = f"<title>{escape(f'{one.name}: {hint}')}</title>"
        yield f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4" fill="{colour}">{title}</circle>'


def _axis(values: Sequence[float], scale: Scale, start: float, end: float) -> _Axis:
    if not values:
        return _Axis(1.0, 10.0, start, end, scale.log)
    if scale.log and min(values) <= 0:
        raise ValueError(f"{scale.title}: {min(values)} has no place on a logarithmic axis")
    low, high = (min(values) / 1.15, max(values) * 1.15) if scale.log else (0.0, 1.05 * max(values) or 1.0)
    return _Axis(low, high, start, end, scale.log, scale.ticks)


def _even_ticks(most: float) -> list[float]:
    """Some five, of a step of 1, 2 or 5 times a power of ten."""
    rough = most / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(k * power for k in (1, 2, 5, 10) if k * power >= rough)
    return [index * step for index in range(int(most / step) + 1)]


def _grid(across: _Axis, up: _Axis) -> Iterator[str]:
    for value in across.ticks():
        at = across.at(value)
        yield f'<line x1="{at:.1f}" y1="{up.start}" x2="{at:.1f}" y2="{up.end}" stroke="{_GRID}"/>'
        yield _text(at, up.start + 18, _number(value), anchor="middle")
    for value in up.ticks():
        at = up.at(value)
        yield f'<line x1="{across.start}" y1="{at:.1f}" x2="{across.end}" y2="{at:.1f}" stroke="{_GRID}"/>'
        yield _text(across.start - 8, at + 4, _number(value), anchor="end")


def _titles(title: str, x: Scale, y: Scale) -> Iterator[str]:
    middle, height = (_LEFT + _WIDTH - _RIGHT) / 2, (_TOP + _HEIGHT - _BOTTOM) / 2
    yield _text(16, 24, title, bold=True)
    yield _text(middle, _HEIGHT - 12, x.title, anchor="middle")
    yield _text(18, height, y.title, anchor="middle", turned=True)


def _legend(names: Sequence[str], left: float, top: float) -> Iterator[str]:
    for number, name in enumerate(names):
        at = top + _ROW * number
        yield f'<rect x="{left}" y="{at}" width="12" height="12" fill="{_colour(number)}"/>'
        yield _text(left + 18, at + 11, _short(name))


def _text(x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False, turned: bool = False) -> str:
    style = f'font-size="{15 if bold else 12}" text-anchor="{anchor}" fill="{_INK}"' + (' font-weight="600"' * bold)
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}{turn}>{escape(text)}</text>'


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" role="img"'
    named = f'{head} aria-label="{escape(title)}" font-family="system-ui, sans-serif">'
    return "\n".join([named, '<rect width="100%" height="100%" fill="#ffffff"/>', *parts, "</svg>"])


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _short(name: str) -> str:
    """Cut in the middle: names are often told apart by their ends."""
    half = _MOST_NAME // 2
    return name if len(name) <= _MOST_NAME else f"{name[: half - 1]}…{name[-half:]}"


def _number(value: float) -> str:
    for unit, scale in (("M", 1e6), ("k", 1e3)):
        if value >= 2 * scale or value == scale:
            return f"{value / scale:g}{unit}"
    return f"{value:g}"
