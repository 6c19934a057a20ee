"""Tabulate in Markdown the estimates of `jaxinfer plan` for models on meshes that are shipped. Nothing is run.

Each cell has GiB of weights a device, ms until each request has one token more (a decode step; in a pipeline as many as
it has stages), and tokens a second.

    python benchmarks/plan_models.py CONFIG.json... [--json FILE]
"""

import argparse
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.report import write_json
from jaxinfer.cli import plan
from jaxinfer.errors import ParameterError

MESHES = ("v5e-8", "v6e-8", "v7x-8", "h200-8", "ep8", "pp2-tp4", "v6e-16", "v6e-16-pp2", "h200-16")
CHIP = "h200"
"""Chip of meshes that name none."""
BATCH, WORKLOAD, CONTEXT = 64, "1024,1024", 8192


def main() -> None:
    """Plans, prints the table and writes the file that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="+", type=Path, metavar="CONFIG.json")
    parser.add_argument("--json")
    asked = parser.parse_args()
    rows = [_planned(config, mesh) for config in asked.configs for mesh in MESHES]
    print("\n".join(_table(rows)))
    write_json(asked.json, {"batch": BATCH, "workload": WORKLOAD, "context": CONTEXT, "rows": rows})


def _planned(config: Path, mesh: str) -> dict[str, Any]:
    model, out = config.name.split(".json")[0].removesuffix(".shapes"), io.StringIO()
    flags = ["--chip", CHIP, "--batch", str(BATCH), "--workload", WORKLOAD, "--context", str(CONTEXT)]
    try:
        with redirect_stdout(out):
            plan.run([str(config), "--mesh", mesh, *flags, "--no-compile", "--json"])
    except ParameterError as error:
        return {"model": model, "mesh": mesh, "error": error.message}
    (told,) = json.loads(out.getvalue())["meshes"]
    names = ("weights_bytes_per_device", "left_bytes", "pages", "sequences", "bound", "refused", "remedies", "service")
    names = (*names, "pipeline")
    return {"model": model, "mesh": mesh, **{name: told[name] for name in names}, "step_seconds": told["step_seconds"]}


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """A line a model and a column a mesh."""
    lines = [f"| model | {' | '.join(MESHES)} |", f"| --- |{' ---: |' * len(MESHES)}"]
    for model in dict.fromkeys(row["model"] for row in rows):
        cells = [_cell(row) for row in rows if row["model"] == model]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return lines


def _cell(row: dict[str, Any]) -> str:
    if "error" in row:
        return "refused"
    weights = f"{row['weights_bytes_per_device'] / 2**30:.1f} GiB"
    if row["service"] is None:
        return f"{weights}, does not fit"
    seconds = row["pipeline"]["round_seconds"] if row["pipeline"] else row["step_seconds"]["seconds"]
    return f"{weights}, {1e3 * seconds:.1f} ms, {row['service']['tokens_per_second']:,.0f}"


if __name__ == "__main__":
    main()
