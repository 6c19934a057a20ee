"""Judge the rows: the points of the grid at which our kernel is ahead of each other one, and the goals that are met."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.kernel_bench.cases import AttentionCase, Case

Row = dict[str, Any]

_OURS = {"gpu": "mosaic_gpu", "tpu": "mosaic_tpu"}
_COPY, _MATMUL, _TIMES = 0.85, 0.65, 4.0


class Goal(NamedTuple):
    """Goal for one case on a GPU. figure: computed from our row and xla's."""

    case: str
    what: str
    wanted: float
    figure: Callable[[Row, Row], float]


def verdict(rows: Sequence[Row], cases: Sequence[Case], platform: str) -> dict[str, Any]:
    """compared: the points of the grid. goals, on a GPU: those that `cases` are for."""
    judged = {"goals": goals(rows, cases)} if platform == "gpu" else {}
    return {"compared": compared(rows, platform), **judged}


def verdict_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a verdict; none if it was never reached."""
    yield from compared_lines(found.get("compared", ()))
    yield from goal_lines(found.get("goals", ()))


def compared(rows: Sequence[Row], platform: str) -> list[dict[str, Any]]:
    """Compare for each case our kernel with every other backend: times, the ratios of theirs to ours by name, and the
    errors of those that failed.

    Ours is the platform's own kernel, or `xla` if there is none. error: ours, if it did not run; there are no times
    then. Medians are compared. lost: backends that take no longer than ours, or all of them if ours did not run.
    """
    by_case: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_case.setdefault(row["case"], {})[row["backend"]] = row
    return [_compared(name, found, platform) for name, found in by_case.items()]


def _compared(name: str, rows: dict[str, Row], platform: str) -> dict[str, Any]:
    ours = _OURS.get(platform, "xla")
    ours = ours if ours in rows else "xla"
    mine = rows.get(ours, {"error": "it was not asked for"})
    others = {backend: row for backend, row in rows.items() if backend != ours}
    failed = {backend: row["error"] for backend, row in others.items() if "us" not in row}
    about = {"case": name, "ours": ours, "failed": failed}
    timed = {backend: row["us"] for backend, row in others.items() if "us" in row}
    if "us" not in mine:
        return {**about, "error": mine["error"], "times": {}, "lost": list(timed)}
    times = {backend: round(us / mine["us"], 3) for backend, us in timed.items()}
    lost = [backend for backend, us in timed.items() if us <= mine["us"]]
    return {**about, "us": mine["us"], "roof_share": mine["roof_share"], "times": times, "lost": lost}


def compared_lines(points: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each point, and then one for each that is lost."""
    lost = [point for point in points if point["lost"] or "error" in point]
    judged = [point for point in points if point["times"] or "error" in point]
    for point in points:
        yield f"{point['case']}, {point['ours']}: {'; '.join(_parts(point))}"
    for point in lost:
        yield f"lost: {point['case']}: {_reason(point)}"
    if judged:
        yield f"lost: {len(lost)} of {len(judged)} points"


def _parts(point: dict[str, Any]) -> Iterator[str]:
    if "error" in point:
        yield f"did not run: {point['error']}"
    ahead = {name: times for name, times in point["times"].items() if name not in point["lost"]}
    behind = {name: times for name, times in point["times"].items() if name in point["lost"]}
    for word, found in (("ahead of", ahead), ("behind", behind)):
        if found:
            yield f"{word} " + ", ".join(f"{name} {times:.2f} x" for name, times in found.items())
    for name, error in point["failed"].items():
        yield f"not compared with {name}: {error}"
    if not (point["times"] or point["failed"] or "error" in point):
        yield "nothing to compare it with"


def _reason(point: dict[str, Any]) -> str:
    if "error" in point:
        return f"{point['ours']} did not run: {point['error']}"
    others = ", ".join(f"{name} ({point['times'][name]:.2f} x its time)" for name in point["lost"])
    return f"{others}; {point['ours']} takes {point['us']} µs, {100 * point['roof_share']:.0f} % of the roof"


def goals(rows: Sequence[Row], cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Each goal that `cases` have a case for. outcome: met, missed, or not measured and why."""
    by_name = {(row["case"], row["backend"]): row for row in rows}
    return [_judged(goal, by_name) for goal in goals_of(cases)]


def goals_of(cases: Sequence[Case]) -> list[Goal]:
    """Decode's share of the copy's bandwidth, prefill's of the rate of products, and decode against plain JAX."""
    return [goal for case in cases if isinstance(case, AttentionCase) for goal in _goals_of(case)]


def _goals_of(case: AttentionCase) -> Iterator[Goal]:
    model = case.model
    if model.latent or model.window or (model.kv_heads, model.key_dim, model.value_dim) != (8, 128, 128):
        return
    decode, size = case.kind == "decode", (case.rows, case.context)
    if decode and ((case.rows >= 32 and case.context >= 2048) or size == (1, 32768)):
        yield Goal(case.name, "share of the copy's bandwidth", _COPY, lambda ours, xla: ours["copy_share"])
    if case.kind == "prefill" and size == (1, 8192) and case.new == 8192:
        yield Goal(case.name, "share of the rate of products", _MATMUL, lambda ours, xla: ours["matmul_share"])
    if decode and size == (32, 2048):
        yield Goal(case.name, "times as fast as xla", _TIMES, lambda ours, xla: xla["us"] / ours["us"])


def _judged(goal: Goal, rows: dict[tuple[str, str], Row]) -> dict[str, Any]:
    about = {"case": goal.case, "what": goal.what, "wanted": goal.wanted}
    absent = {"error": "it did not run"}
    ours, xla = (rows.get((goal.case, name), absent) for name in (_OURS["gpu"], "xla"))
    try:
        found = goal.figure(ours, xla)
    except KeyError:
        return {**about, "outcome": f"not measured: {ours.get('error') or xla.get('error')}"}
    return {**about, "found": round(found, 4), "outcome": "met" if found >= goal.wanted else "missed"}


def goal_lines(judged: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line each."""
    for goal in judged:
        found = f"{goal['found']:.3f}, " if "found" in goal else ""
        yield f"goal: {goal['case']}, {goal['what']}, at least {goal['wanted']}: {found}{goal['outcome']}"
