"""The bench's rows as lines of text, and their headline."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

_HEADING = f"{'case':58} {'backend':12} {'µs':>10} {'low':>10} {'high':>10} {'GB/s':>8} {'of copy':>8}"
HEADING = f"{_HEADING} {'TFLOP/s':>8} {'of matmul':>9} {'of roof':>8}"


def row_line(row: dict[str, Any]) -> str:
    """One case with one backend."""
    begin = f"{row['case']:58} {row['backend']:12} "
    if "error" in row:
        return begin + row["error"]
    low, high = row["us_low_high"]
    times = f"{row['us']:10.1f} {low:10.1f} {high:10.1f}"
    moved = f"{row['gb_per_s']:8.2f} {100 * row['copy_share']:7.1f}%"
    products = f"{row['tflops']:8.4f} {100 * row['matmul_share']:8.1f}% {100 * row['roof_share']:7.1f}%"
    return f"{begin}{times} {moved} {products}"


def line_lines(line: dict[str, Any]) -> Iterator[str]:
    """Time against pages in use."""
    begin = f"{line['backend']}, {line['model']}, decode, {line['rows']} rows"
    if "error" in line:
        yield f"{begin}: {line['error']}"
        return
    fit = f"{line['us_at_no_page']} µs + {line['us_a_page']} µs a page"
    fastest = f"of the fastest runs {100 * line['fastest']['largest_deviation']:.1f} %"
    yield f"{begin}: {fit}, largest deviation {100 * line['largest_deviation']:.1f} %, {fastest}"
    for pages, seen, fitted in zip(line["pages"], line["us"], line["fitted_us"], strict=True):
        yield f"  {pages:6} pages {seen:12.1f} µs, on the line {fitted:12.1f} µs ({100 * (seen / fitted - 1):+.1f} %)"


def beside_line(row: dict[str, Any]) -> str:
    """One long row beside short ones."""
    begin = f"{row['backend']}, {row['model']}, decode, 1 x {row['long']} beside {row['short']}"
    if "error" in row:
        return f"{begin}: {row['error']}"
    low, high = row["ratio_low_high"]
    apart = f"{row['long_us']:.1f} and {row['short_us']:.1f} µs apart"
    return f"{begin}: {row['together_us']:.1f} µs, {apart}, {row['ratio']:.3f} of their sum ({low:.3f}-{high:.3f})"


def headline(result: dict[str, Any]) -> str:
    """One line: shares of the roof, and how far time is off a line and one long row from both apart."""
    timed = [row for row in result.get("rows", ()) if "roof_share" in row]
    parts = [_shares(timed)] if timed else []
    ragged = result.get("raggedness", {})
    parts += [
        f"{line['backend']}, {line['rows']} rows: {100 * line['largest_deviation']:.1f} % off a line over pages in use"
        for line in ragged.get("time_against_pages", ())
        if "error" not in line
    ]
    parts += [
        f"{row['backend']}, one long row beside short ones: {row['ratio']:.2f} of both apart"
        for row in ragged.get("one_long_row", ())
        if "error" not in row
    ]
    return "; ".join(parts) or "kernels: nothing was measured"


def _shares(rows: Sequence[dict[str, Any]]) -> str:
    """Summarise the median share of the device's roof for each backend, by kind of case."""
    shares: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        shares.setdefault(row["backend"], {}).setdefault(row["kind"], []).append(row["roof_share"])
    each = (
        f"{name}: " + ", ".join(f"{kind} {100 * median(found):.0f} %" for kind, found in kinds.items())
        for name, kinds in shares.items()
    )
    return f"share of the roof, median over cases - {'; '.join(each)}"
