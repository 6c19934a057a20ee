"""Compare estimates of `jaxinfer plan` for decode steps on this CPU with measurements, calibrated in the same run.

Models have random weights in the shapes of a config.json; a step's rows have 128 tokens each. `--tensor`: also over so
many devices of this CPU, which share its cores and memory: their estimates are not meant as bounds.

    python benchmarks/plan_measured.py CONFIG.json... [--tensor N] [--json FILE]
"""

import argparse
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

ROWS, LENGTH, STEPS, REPEATS = (1, 8, 32), 128, 8, 5
_MOST_TOKENS = 256


def main() -> None:
    """Measures, prints a line a case and writes the file that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="+", type=Path, metavar="CONFIG.json")
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--json")
    asked = parser.parse_args()
    flag = f"--xla_force_host_platform_device_count={asked.tensor}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu"
    from benchmarks.calibrate import calibrate, grid_of
    from benchmarks.report import write_json

    calibration = calibrate("cpu", grid_of("cpu"))
    rows = [
        row
        for config in asked.configs
        for tensor in dict.fromkeys((1, asked.tensor))
        for row in _of_model(config, tensor, calibration)
    ]
    write_json(asked.json, {"length": LENGTH, "calibration": calibration, "rows": rows})


def _of_model(config: Path, tensor: int, calibration: dict[str, Any]) -> list[dict[str, Any]]:
    import jax.numpy as jnp

    from benchmarks.device.rig import Rig, rig_shapes
    from jaxinfer.folder_files import read_object
    from jaxinfer.model_config.registry import parse_config
    from jaxinfer.models.loaded import random_model
    from jaxinfer.parallel.mesh import make_mesh
    from jaxinfer.parallel.mesh_config import MeshConfig
    from jaxinfer.runner.jax_runner import JaxRunner

    decoder, mesh = parse_config(read_object(config)), MeshConfig({"tensor": tensor})
    over = decoder.over(*mesh.parts)
    model = random_model(over, dtype=jnp.dtype("float32"), mesh=make_mesh(mesh), rules=mesh.rules)
    shapes = rig_shapes(over, rows=max(ROWS), tokens=max(ROWS), length=_MOST_TOKENS, block_size=16)
    rig, found = Rig(JaxRunner(model, shapes)), []
    name = config.name.split(".json")[0].removesuffix(".shapes")
    for rows in ROWS:
        measured = rig.decode_seconds(rows, LENGTH, STEPS, REPEATS)
        planned = _planned(decoder, mesh, calibration, rows)
        ratio = planned / median(measured)
        found.append({"model": name, "tensor": tensor, "rows": rows, "planned": planned, "measured": measured})
        spread = f"{1e3 * min(measured):.1f}-{1e3 * max(measured):.1f}"
        print(
            f"| {name} | {tensor} | {rows} | {1e3 * planned:.1f} ms | {1e3 * median(measured):.1f} ms ({spread}) "
            f"| {ratio:.2f} |",
            flush=True,
        )
    return found


def _planned(decoder: Any, mesh: Any, calibration: dict[str, Any], rows: int) -> float:
    """Seconds of the step in the middle of those that are timed."""
    from jaxinfer.config import EngineConfig, ModelConfig
    from jaxinfer.plan.calibration import calibrated_chip
    from jaxinfer.plan.estimate import plan_mesh
    from jaxinfer.plan.work import ShardRows

    chip = calibrated_chip(calibration, Path("measured"))
    asked = EngineConfig(load=ModelConfig(max_model_len=_MOST_TOKENS))
    return plan_mesh(asked, decoder, mesh, "this", chip).time(ShardRows(rows, 1, LENGTH + STEPS // 2)).seconds


if __name__ == "__main__":
    main()
