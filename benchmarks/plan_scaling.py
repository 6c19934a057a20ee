"""Predicted tokens a second and chip on 1 to 64 chips of each kind, from shapes alone: nothing is run.

For each number of chips the best of the meshes that hold the model, by output tokens of the whole mesh: groups of
devices that attend for different requests (`data`), times parts of the model (`tensor`). Models have the shapes of
Llama-3.1-8B and Llama-3.1-70B in bfloat16. The requests stay the same, tokens of a step grow with the groups.
Efficiency is beside the fewest chips of the kind that hold the model, which may have room for fewer requests.

    python benchmarks/plan_scaling.py [--json FILE] [--svg FOLDER]
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from program_models import DENSE, Model

from benchmarks.report import write_json
from jaxinfer.config import EngineConfig, ModelConfig, SchedulerConfig
from jaxinfer.errors import ParameterError
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.plan.charts import ChartLine, Scale, line_chart
from jaxinfer.plan.chip import chip_files, read_chip
from jaxinfer.plan.estimate import MeshPlan, plan_mesh
from jaxinfer.plan.service import Workload, service

CHIPS = (1, 2, 4, 8, 16, 32, 64)
REQUESTS = 64
"""Under way, of the whole mesh."""
WORKLOAD = Workload(1024, 1024)
CONTEXT = 8192
STEP_TOKENS = 2048
"""Most tokens of a group's step."""
_NOTE = (
    f"{REQUESTS} requests of {WORKLOAD.tokens_in:,} tokens in and out, bfloat16, the best mesh of each size. "
    "Predicted from shapes at peak rates; nothing was run on any chip."
)


def main() -> None:
    """Plans, prints a table and writes the files that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("--svg", type=Path, help="a folder for a picture a model")
    asked = parser.parse_args()
    rows = [row for model in _models() for row in _planned(model)]
    for row in rows:
        rate = f"{row['tokens_per_second_per_chip']:8,.0f} tokens/s a chip, efficiency {row['efficiency']:.2f}"
        print(f"{row['model']:14} {row['chip']:5} {row['chips']:2} chips {row['mesh']:20} {rate}")
    write_json(asked.json, {"workload": WORKLOAD._asdict(), "requests": REQUESTS, "rows": rows})
    for model in _models() if asked.svg else ():
        name = model.name.lower().replace(".", "_").replace("-", "_")
        (asked.svg / f"plan_scaling_{name}.svg").write_text(_picture(model.name, rows) + "\n")


def _models() -> list[Model]:
    large = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}
    return [DENSE[1], Model("Llama-3.1-70B", DENSE[1].fields | large)]


def _planned(model: Model) -> list[dict[str, Any]]:
    found = []
    for kind in chip_files():
        first = 0.0
        for chips in CHIPS:
            if (best := _best(model, kind, chips)) is None:
                continue
            plan, rate = best
            first = first or rate / chips
            row = {"model": model.name, "chip": kind, "chips": chips, "mesh": str(plan.mesh)}
            found.append(row | {"tokens_per_second_per_chip": rate / chips, "efficiency": rate / chips / first})
    return found


def _best(model: Model, kind: str, chips: int) -> tuple[MeshPlan, float] | None:
    """The mesh with most tokens a second, and these."""
    chip = read_chip(kind)
    found, devices = [], chips * chip.devices
    for tensor in (1 << power for power in range(devices.bit_length())):
        mesh = MeshConfig({"data": devices // tensor, "tensor": tensor})
        scheduler = SchedulerConfig(
            max_num_seqs=max(REQUESTS, mesh.data), max_num_batched_tokens=STEP_TOKENS * mesh.data
        )
        try:
            config = EngineConfig(load=ModelConfig(dtype="bfloat16", max_model_len=CONTEXT), scheduler=scheduler)
            plan = plan_mesh(config, model.config(None), mesh, str(mesh), chip)
        except ParameterError:
            continue
        if plan.chips == chips and plan.holds(CONTEXT):
            found.append((plan, service(plan, WORKLOAD, REQUESTS).tokens_per_second))
    return max(found, key=lambda one: one[1], default=None)


def _picture(model: str, rows: list[dict[str, Any]]) -> str:
    series = []
    for kind in dict.fromkeys(row["chip"] for row in rows):
        own = [row for row in rows if row["model"] == model and row["chip"] == kind]
        points = tuple((row["chips"], row["tokens_per_second_per_chip"]) for row in own)
        hints = tuple(f"{row['chips']} chips, {row['mesh']}: {row['tokens_per_second_per_chip']:,.0f}" for row in own)
        series.append(ChartLine(kind, points, hints))
    scales = Scale("chips", log=True, ticks=CHIPS), Scale("tokens a second and chip", log=True)
    return line_chart(f"{model}: tokens a second and chip", *scales, series, _NOTE)


if __name__ == "__main__":
    main()
