"""Host cost of a decode step on real programs over 1 to 8 devices of a CPU: upload, dispatch, readback.

Models have the layers, and so the arrays, of Llama-3.1-8B and Qwen3-30B-A3B, but few numbers in each, so that little is
left of what devices compute. `upload`: the packed step from host memory to all devices. `forward`, `sample`: from the
call until it returns, with the upload of its arguments. `read`: the tokens, once they are there. Medians and the
middle half of `--steps` steps, in microseconds; the device counts take turns.

    python benchmarks/dispatch.py [--json FILE] [--steps N] [--turns N]
"""

import argparse
import os
import sys
import time
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "scripts")]
DEVICES = (1, 2, 4, 8)
ROWS = 16


class Model(NamedTuple):
    """A model's fields, in place of those of a real one of so many layers."""

    name: str
    fields: dict[str, Any]


def main() -> None:
    """Measures, prints a table and writes the file that was asked for."""
    from benchmarks.report import write_json

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("--steps", type=int, default=60, help="timed steps a turn; default: %(default)s")
    parser.add_argument("--turns", type=int, default=5, help="default: %(default)s")
    asked = parser.parse_args()
    rows = [row for model in _models() for row in _measured(model, asked.steps, asked.turns)]
    write_json(asked.json, {"rows": rows, "rows_a_step": ROWS, "steps": asked.steps, "turns": asked.turns})


def _models() -> list[Model]:
    from program_models import DENSE, QWEN3_MOE

    small = {"vocab_size": 1024, "hidden_size": 64, "intermediate_size": 64, "head_dim": 8}
    return [
        Model(DENSE[1].name, DENSE[1].fields | small),
        Model(QWEN3_MOE.name, QWEN3_MOE.fields | small | {"moe_intermediate_size": 128, "num_experts": 8}),
    ]


def _measured(model: Model, steps: int, turns: int) -> list[dict[str, Any]]:
    runners = {count: _runner(model, count) for count in DEVICES}
    leaves = len(runners[1].model.weights)
    times: dict[int, dict[str, list[float]]] = {count: {} for count in DEVICES}
    for _ in range(turns):
        for count, runner in runners.items():
            for part, found in _turn(runner, steps).items():
                times[count].setdefault(part, []).extend(found)
    rows = [{"model": model.name, "leaves": leaves, "devices": count, **_summary(times[count])} for count in DEVICES]
    for row in rows:
        parts = "  ".join(f"{part} {row[part][1]:6.0f} ({row[part][0]:.0f}-{row[part][2]:.0f})" for part in times[1])
        print(f"{model.name:16} {leaves} weights, {row['devices']} devices: {parts}", flush=True)
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
    config = Described(*model).config(None).over(*mesh.parts)
    loaded = random_model(config, dtype=jnp.dtype("float32"), mesh=make_mesh(mesh), rules=mesh.rules)
    groups = tuple(KVGroup(group.window, 64) for group in config.kv_groups)
    shapes = EngineShapes(ROWS, 64, ROWS, 128, 16, groups, config.vocab_size)
    return JaxRunner(loaded, shapes)


def _turn(runner: Any, steps: int) -> dict[str, list[float]]:
    import jax

    from jaxinfer.engine.step.packing import Packer
    from jaxinfer.engine.step.plan import StepKind

    step = Packer(runner.shapes).padding(StepKind.DECODE, ROWS)._replace(num_scored=ROWS, scored_bucket=ROWS)
    place = jax.sharding.NamedSharding(runner.model.mesh, jax.sharding.PartitionSpec())
    times: dict[str, list[float]] = {"upload": [], "forward": [], "sample": [], "read": []}
    for number in range(steps + 3):
        marks = [time.perf_counter()]
        jax.device_put(step.array, place).block_until_ready()
        marks.append(time.perf_counter())
        forwarded = runner.forward(step)
        marks.append(time.perf_counter())
        sampled = runner.sample(step, forwarded)
        marks.append(time.perf_counter())
        jax.block_until_ready(sampled.sampled.tokens)
        ready = time.perf_counter()
        runner.collect(sampled)
        marks.append(marks[-1] + time.perf_counter() - ready)
        if number >= 3:  # the first ones fill caches
            for part, begin, end in zip(times, marks, marks[1:], strict=False):
                times[part].append(end - begin)
    return times


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    flag = f"--xla_force_host_platform_device_count={max(DEVICES)}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    main()
