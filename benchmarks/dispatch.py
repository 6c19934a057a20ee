"""Host cost of a decode step on real programs over 1 to 8 devices of a CPU: upload, dispatch, readback.

Models have the layers, and so the arrays, of Llama-3.1-8B and Qwen3-30B-A3B, but few numbers in each; `stacked`:
`--scan-layers on`. Devices of a CPU would compute on the cores that dispatch, so they are held up until both programs
are dispatched, as an accelerator is by the step before. `upload`: the packed step from host memory to all devices.
`begin`, `finish`: from the call until it returns, with the upload of its arguments. `read`: the tokens, once they are
there. `launch`: a program of two arguments, and `buffers`: one that has the model's weights for arguments and uses
none: what of `begin` they cost.
`multi_step`: the one call that is made in place of `begin` and `finish` for 4 steps (`--decode-steps 4`).
Medians and the middle half of `--steps` steps, in microseconds; the device counts take turns.

    python benchmarks/dispatch.py [--json FILE] [--steps N] [--turns N] [--models REGEX]
"""

import argparse
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "scripts")]
DEVICES = (1, 2, 4, 8)
ROWS, STEPS = 16, 4
_WARM = 3
"""Steps of a turn that fill caches."""
_CPU_DEVICES = 3 * max(DEVICES)
"""XLA has a thread a device, and a program that waits keeps those of its devices: with too few, the next dispatch waits
for the program before it."""
_LONGEST_HOLD = 0.2
"""Seconds, should a device be held by a call that does not return before."""


class Model(NamedTuple):
    """A model's fields, in place of those of a real one of so many layers, and the layout of its layers."""

    name: str
    fields: dict[str, Any]
    layout: str


def main() -> None:
    """Measures, prints a table and writes the file that was asked for."""
    from benchmarks.report import write_json

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("--steps", type=int, default=60, help="timed steps a turn; default: %(default)s")
    parser.add_argument("--turns", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--models", default="", help="a regular expression that their names match; default: all")
    asked = parser.parse_args()
    models = [model for model in _models() if re.search(asked.models, model.name)]
    rows = [row for model in models for row in _measured(model, asked.steps, asked.turns)]
    write_json(asked.json, {"rows": rows, "rows_a_step": ROWS, "steps": asked.steps, "turns": asked.turns})


def _models() -> list[Model]:
    from program_models import DENSE, QWEN3_MOE

    small = {"vocab_size": 1024, "hidden_size": 64, "intermediate_size": 64, "head_dim": 8}
    experts = {"moe_intermediate_size": 128, "num_experts": 8}
    both = [(DENSE[1].name, DENSE[1].fields | small), (QWEN3_MOE.name, QWEN3_MOE.fields | small | experts)]
    return [Model(*one, layout) for one in both for layout in ("unrolled", "stacked")]


def _measured(model: Model, steps: int, turns: int) -> list[dict[str, Any]]:
    runners = {count: _runner(model, count) for count in DEVICES}
    leaves = len(runners[1].stages[0].model.weights)
    times: dict[int, dict[str, list[float]]] = {count: {} for count in DEVICES}
    for _ in range(turns):
        for count, runner in runners.items():
            for part, found in _turn(runner, steps).items():
                times[count].setdefault(part, []).extend(found)
    rows = [
        {"model": model.name, "layout": model.layout, "leaves": leaves, "devices": count, **_summary(times[count])}
        for count in DEVICES
    ]
    for row in rows:
        parts = "  ".join(f"{part} {row[part][1]:6.0f} ({row[part][0]:.0f}-{row[part][2]:.0f})" for part in times[1])
        print(f"{model.name:16} {model.layout:8} {leaves} weights, {row['devices']} devices: {parts}", flush=True)
    return rows


def _summary(times: dict[str, list[float]]) -> dict[str, list[float]]:
    """Quartiles."""
    return {part: [round(1e6 * value, 1) for value in quantiles(found, n=4)] for part, found in times.items()}


def _runner(model: Model, devices: int) -> Any:
    import jax.numpy as jnp
    from program_models import Model as Described

    from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
    from jaxinfer.models.loaded import random_model
    from jaxinfer.parallel.mesh import make_mesh
    from jaxinfer.parallel.mesh_config import MeshConfig
    from jaxinfer.runner.jax_runner import JaxRunner

    mesh = MeshConfig({"tensor": devices})
    config = Described(model.name, model.fields).config(None).over(*mesh.parts)
    options = {"mesh": make_mesh(mesh), "rules": mesh.rules, "layout": model.layout}
    loaded = random_model(config, dtype=jnp.dtype("float32"), **options)
    groups = tuple(KVGroup(group.window, 64) for group in config.kv_groups)
    shapes = EngineShapes(ROWS, 64, ROWS, 128, 16, groups, config.vocab_size, decode_steps=STEPS)
    return JaxRunner(loaded, shapes)


def _turn(runner: Any, steps: int) -> dict[str, list[float]]:
    import jax

    from jaxinfer.engine.step.packing import Packer
    from jaxinfer.engine.step.plan import StepKind

    packer = Packer(runner.shapes)
    step = packer.padding(StepKind.DECODE, ROWS)._replace(num_scored=ROWS, scored_bucket=ROWS)
    several = packer.padding(StepKind.MULTI_STEP, ROWS)
    place = jax.sharding.NamedSharding(runner.stages[0].model.mesh, jax.sharding.PartitionSpec())
    weights, hold = runner.stages[0].model.weights, Hold(runner)
    launch, buffers = (jax.jit(_nothing_of, keep_unused=True).lower(each).compile() for each in (weights[:2], weights))
    watch = Stopwatch()
    for _ in range(steps + _WARM):
        for part, program, given in (("launch", launch, weights[:2]), ("buffers", buffers, weights)):
            out = watch.time(part, program, given)
            jax.block_until_ready(out)
        watch.time("upload", lambda: jax.device_put(step.array, place).block_until_ready())
        with hold:
            forwarded = watch.time("begin", runner.begin, step)
            sampled = watch.time("finish", runner.finish, step, forwarded, None)
        jax.block_until_ready(sampled.sampled.tokens)
        watch.time("read", runner.result, sampled)
        with hold:
            drawn = watch.time("multi_step", runner.run, several)
        jax.block_until_ready(drawn.sampled.tokens)
    return {part: found[_WARM:] for part, found in watch.times.items()}


def _nothing_of(arrays: Any) -> Any:
    del arrays
    return np.int32(0)


class Stopwatch:
    """Seconds of calls, by name."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    def time(self, part: str, function: Callable[..., Any], *given: Any) -> Any:
        """Time a call and return its result."""
        begin = time.perf_counter()
        out = function(*given)
        self.times.setdefault(part, []).append(time.perf_counter() - begin)
        return out


class Hold:
    """A context in which a runner's devices wait before their next program: its block tables are not there yet."""

    def __init__(self, runner: Any):
        import jax

        self._runner, self._go = runner, threading.Event()
        place = jax.sharding.PartitionSpec()
        waiting = jax.shard_map(
            self._wait_on_device, mesh=runner.stages[0].model.mesh, in_specs=place, out_specs=place, check_vma=False
        )
        self._program = jax.jit(waiting, donate_argnums=0).lower(runner.stages[0].slots.tables).compile()

    def __enter__(self) -> None:
        self._go.clear()
        stage = self._runner.stages[0]
        stage.slots = stage.slots._replace(tables=self._program(stage.slots.tables))
        time.sleep(0.002)  # until every device has begun to wait

    def __exit__(self, *_: object) -> None:
        self._go.set()

    def _wait_on_device(self, tables: Any) -> Any:
        import jax
        import jax.numpy as jnp

        # A program of less work is run by the thread that calls it.
        some = jnp.ones((64, 64), jnp.int32) * jax.tree.leaves(tables)[0].ravel()[0]
        zero = jax.pure_callback(self._wait, jax.ShapeDtypeStruct((), jnp.int32), (some @ some)[0, 0])
        return jax.tree.map(lambda table: table + zero, tables)

    def _wait(self, _: Any) -> Any:
        self._go.wait(_LONGEST_HOLD)
        return np.zeros((), np.int32)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    flag = f"--xla_force_host_platform_device_count={_CPU_DEVICES}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    main()
