"""Two forms of a pipeline over four devices of a CPU: one program a tick over all stages, or programs of each stage.

`A`: weights are stacked along a mesh axis of stages, and each call is a tick: `shard_map`, `ppermute`, one bucket for
all stages. `A+`: the same with branches: a stage skips layers that it lacks, and computes decode rows in their own size
beside another stage's prompt chunk. `B`: each stage has programs of its own, and `device_put` hands hidden states on.
Model and microbatches are the smallest that have what matters: donated state in each layer, tokens that go back to the
first stage. Tokens are compared with those of one device first.

`host`: from the call until it returns, for each tick; devices are held up until several are dispatched. Of it `CPU`:
what the calling thread runs itself, which other processes disturb less; what other threads do to launch is not in it.
`step`: real computation, where dispatch and devices share the cores. `compile`: programs of every bucket, one after
another.
`schedule`: not measured, but computed: what lists of microbatches take, with prompt chunks between and on uneven
stages, where devices run side by side and a layer takes `--layer-ms` and `--token-us` a token. `work`: the same lists
on these devices, which share the cores: the work of all stages counts, not the longest.
`hand-over`: an array to another device. Medians and the middle half, in turns.

    python benchmarks/pipeline_forms.py [--json FILE] [--turns N] [--width N] [--layer-ms X] [--token-us X] [--quick]
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.pipeline_parts.microbatches import Microbatch
    from benchmarks.pipeline_parts.schedule import LayerCost

sys.path[:0] = [str(Path(__file__).parents[1])]
STAGES, ROWS, CHUNK = 4, 4, 256
_CPU_DEVICES = 3 * STAGES
"""XLA has a thread a device, and a program that waits keeps its own: as in `dispatch.py`."""
_QUEUED = 8
"""Ticks that are dispatched while devices are held up."""
_NARROW = 64
"""The width where little should be computed."""
_STAGES = (
    ("2,2,2,2", (2, 2, 2, 2), 0),
    ("2,2,2,1", (2, 2, 2, 1), 0),
    ("2,2,2,1 + head of 2", (2, 2, 2, 1), 2),
    ("2,2,2,2 + head of 2", (2, 2, 2, 2), 2),
    ("3,2,2,1 + head of 2", (3, 2, 2, 1), 2),
)
"""Layers of each stage, and of how many the head has the cost."""
_HEAD_OF_A_LAYER = 10
"""Tokens in the vocabulary, in widths, for a head with the weights of a layer."""

Spread = list[float]
"""Quartiles."""


def main() -> None:
    """Measures, prints a table and the headline, and writes the file that was asked for."""
    from benchmarks.pipeline_parts.schedule import LayerCost
    from benchmarks.report import write_json

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("--turns", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--width", type=int, default=512, help="of hidden states in `work`; default: %(default)s")
    parser.add_argument("--layer-ms", type=float, default=1.0, help="of a layer; default: %(default)s")
    parser.add_argument("--token-us", type=float, default=8.0, help="and for each token; default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="small and once: whether it runs")
    asked = parser.parse_args()
    turns, width = (1, 32) if asked.quick else (asked.turns, asked.width)
    result: dict[str, Any] = {"turns": turns, "width": width, "rows": ROWS, "chunk": CHUNK}
    result["tokens_equal"] = _tokens_equal()
    result["hand_over"] = _hand_over(turns)
    result["host"], result["step"] = _host(turns)
    result["compile"] = _compile(1 if asked.quick else 3, (1, 64) if asked.quick else None)
    cost = LayerCost(asked.layer_ms, asked.token_us / 1e3)
    result["schedule"] = {"layer_ms": asked.layer_ms, "token_us": asked.token_us, "ms": _schedule(cost)}
    result["work"] = _work(turns, width, 1 if asked.quick else 4)
    write_json(asked.json, result)
    print(_headline(result))


def _forms() -> dict[str, Callable[..., Any]]:
    from functools import partial

    from benchmarks.pipeline_parts.one_program import OneProgram
    from benchmarks.pipeline_parts.stage_programs import StagePrograms

    return {"A": OneProgram, "A+": partial(OneProgram, branches=True), "B": StagePrograms}


def _tokens_equal() -> bool:
    """Return whether every form gives one device's tokens: decode rows in turns, a prompt between, uneven stages."""
    from benchmarks.pipeline_parts.microbatches import chunk, decode, decode_round, mixed, reference_tokens
    from benchmarks.pipeline_parts.model import Model

    model = Model((2, 2, 2, 1), _NARROW)
    rounds = decode_round(STAGES, ROWS)
    both = mixed(range(ROWS), 61, 40)
    asked = [*rounds * 3, chunk(60, CHUNK), *rounds[1:], decode([60]), *rounds[1:], both, *rounds[1:], *rounds]
    expected = reference_tokens(model, asked)
    for name, form in _forms().items():
        if form(model).run(asked) != expected:
            raise SystemExit(f"form {name} gives other tokens than one device")
    return True


def _host(turns: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Microseconds of host time a tick, by part, and of a microbatch with its computation."""
    from benchmarks.pipeline_parts.hold import Hold
    from benchmarks.pipeline_parts.microbatches import decode_round
    from benchmarks.pipeline_parts.model import Model

    rounds = decode_round(STAGES, ROWS)
    forms = {name: form(Model((2,) * STAGES, _NARROW)) for name, form in _forms().items()}
    ticks: dict[str, list[float]] = {name: [] for name in forms}
    own: dict[str, list[float]] = {name: [] for name in forms}
    steps: dict[str, list[float]] = {name: [] for name in forms}
    parts: dict[str, dict[str, list[float]]] = {name: {} for name in forms}
    for form in forms.values():
        form.run(rounds * 2)
    for _ in range(4 * turns):
        for name, form in forms.items():
            form.watch.times.clear()
            with Hold(form):
                for number in range(_QUEUED):
                    begin = time.thread_time()
                    ticks[name].append(_seconds(form.submit, rounds[number % STAGES]))
                    own[name].append(time.thread_time() - begin)
            for part, found in form.watch.times.items():
                parts[name].setdefault(part, []).extend(found)
            form.run([])
            steps[name].append(_seconds(form.run, rounds * 16) / (16 * STAGES))
    host = {
        name: {
            "tick": _spread(ticks[name], 1e6),
            "tick_cpu": _spread(own[name], 1e6),
            "tick_lowest_tenth": round(1e6 * quantiles(ticks[name], n=10)[0], 1),
            "calls": _microseconds(parts[name]),
        }
        for name in forms
    }
    _print("host, µs a tick", {name: one["tick"] for name, one in host.items()})
    _print("host, µs of the thread's CPU a tick", {name: one["tick_cpu"] for name, one in host.items()})
    print("host, µs a tick, lowest tenth: ", {name: one["tick_lowest_tenth"] for name, one in host.items()})
    for name, one in host.items():
        _print(f"host, µs a call of {name}", one["calls"])
    step = {name: _spread(found, 1e6) for name, found in steps.items()}
    _print("step, µs a microbatch", step)
    return host, step


def _microseconds(parts: dict[str, list[float]]) -> dict[str, Spread]:
    return {part: _spread(found, 1e6) for part, found in parts.items()}


def _compile(turns: int, buckets: Sequence[int] | None) -> dict[str, Any]:
    import jax

    from benchmarks.pipeline_parts.model import BUCKETS, Model

    found: dict[str, dict[str, list[float]]] = {}
    counts = {}
    for _ in range(turns):
        for name, form in _forms().items():
            jax.clear_caches()
            made = form(Model((2,) * STAGES, _NARROW))
            for bucket in buckets or BUCKETS:
                made.compile(bucket)
            counts[name] = len(made.programs)
            for part, seconds in made.programs.seconds.items():
                found.setdefault(name, {}).setdefault(part, []).append(seconds)
    result = {}
    for name, parts in found.items():
        result[name] = {"programs": counts[name], **{part: _spread(each, 1, 2) for part, each in parts.items()}}
        row = {part: result[name][part] for part in parts}
        _print(f"{name}: {counts[name]} programs, s", row)
    return result


def _chunks(rounds: int) -> "dict[str, list[Microbatch]]":
    """Lists of as many microbatches: decode rows, with prompt chunks in place of some, or a part of one beside each."""
    from benchmarks.pipeline_parts.microbatches import chunk, decode_round, mixed

    plain = decode_round(STAGES, ROWS)
    spread = [mixed(range(at * ROWS, (at + 1) * ROWS), 60 + at, CHUNK // STAGES - ROWS) for at in range(STAGES)]
    chunks = [chunk(60 + number % 4, CHUNK) for number in range(rounds)]
    every = [each for prompt in chunks for each in (prompt, *plain[1:])]
    one = [chunks[0], *plain[1:], *plain * (rounds - 1)]
    return {"decode only": plain * rounds, "one chunk": one, "a chunk every 4th": every, "spread": spread * rounds}


def _schedule(cost: "LayerCost") -> dict[str, Any]:
    """Computed milliseconds of lists of microbatches where devices run side by side: of all, and at most between two
    tokens of a row."""
    from benchmarks.pipeline_parts.schedule import schedules

    result: dict[str, Any] = {}
    for title, layers, head in _STAGES:
        asked = _chunks(16) if title == _STAGES[0][0] else {"decode only": _chunks(16)["decode only"]}
        for load, microbatches in asked.items():
            found = schedules(layers, head, microbatches, cost)
            result[f"{title}: {load}"] = found
            shown = "  ".join(f"{name} {total:7.1f}, wait {wait:5.1f}" for name, (total, wait) in found.items())
            print(f"{f'schedule, ms: {title}: {load}':48} {shown}")
    return result


def _work(turns: int, width: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of the same, really computed by devices that share the cores."""
    from benchmarks.pipeline_parts.model import Model

    result: dict[str, Any] = {}
    for title, layers, head in _STAGES:
        model = Model(layers, width, _HEAD_OF_A_LAYER * width * head or 1024)
        asked = _chunks(rounds) if title == _STAGES[0][0] else {"decode only": _chunks(2 * rounds)["decode only"]}
        result |= _compared(f"{title}: ", model, asked, turns)
    return result


def _compared(prefix: str, model: Any, asked: dict[str, Any], turns: int) -> dict[str, dict[str, Spread]]:
    forms = {name: form(model) for name, form in _forms().items()}
    times = {title: {name: [] for name in forms} for title in asked}
    for turn in range(turns + 1):
        for title, microbatches in asked.items():
            for name, form in forms.items():
                seconds = _seconds(form.run, microbatches)
                if turn > 0:  # the first compiles
                    times[title][name].append(seconds)
    megabytes = {name: max(form.device_bytes()) // 10**6 for name, form in forms.items()}
    result: dict[str, Any] = {}
    for title, of in times.items():
        row = {name: _spread(each, 1e3) for name, each in of.items()}
        _print(f"work, ms: {prefix}{title}", row)
        result[prefix + title] = {**row, "largest_device_mb": megabytes}
    return result


def _hand_over(turns: int) -> dict[str, Any]:
    """Microseconds until the call returns, and until the array is there."""
    from benchmarks.pipeline_parts.hand_over import ways

    calls: dict[str, list[float]] = {}
    there: dict[str, list[float]] = {}
    each = ways()
    for _ in range(turns):
        for name, send in each.items():
            for repeat in range(30):
                begin = time.perf_counter()
                sent = send()
                called = time.perf_counter()
                sent.block_until_ready()
                arrived = time.perf_counter()
                if repeat >= 5:
                    calls.setdefault(name, []).append(called - begin)
                    there.setdefault(name, []).append(arrived - begin)
    result = {name: {"call": _spread(calls[name], 1e6), "there": _spread(there[name], 1e6)} for name in calls}
    for name, row in result.items():
        _print(f"hand-over, µs: {name}", row)
    return result


def _seconds(function: Callable[..., Any], *given: Any) -> float:
    begin = time.perf_counter()
    function(*given)
    return time.perf_counter() - begin


def _spread(found: Sequence[float], scale: float, digits: int = 1) -> Spread:
    values = quantiles(found, n=4, method="inclusive") if len(found) > 1 else [found[0]] * 3
    return [round(scale * value, digits) for value in values]


def _print(title: str, row: dict[str, Spread]) -> None:
    shown = (f"{name} {middle:9.6g} ({low:.6g}-{high:.6g})" for name, (low, middle, high) in row.items())
    print(f"{title:48} {'  '.join(shown)}", flush=True)


def _headline(result: dict[str, Any]) -> str:
    host = {name: one["tick"][1] for name, one in result["host"].items()}
    made = {name: (one["programs"], one["trace"][1] + one["compile"][1]) for name, one in result["compile"].items()}
    work = {name: result["work"]["2,2,2,2: a chunk every 4th"][name][1] for name in made}
    return (
        f"host A {host['A']:.0f} B {host['B']:.0f} us a tick, "
        f"programs A {made['A'][0]} in {made['A'][1]:.1f} s B {made['B'][0]} in {made['B'][1]:.1f} s, "
        f"chunks between A {work['A']:.0f} A+ {work['A+']:.0f} B {work['B']:.0f} ms"
    )


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    flag = f"--xla_force_host_platform_device_count={_CPU_DEVICES}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    main()
