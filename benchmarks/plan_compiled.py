"""Every program of several models compiled for meshes that need not be here: what it takes, and how near shapes come.

Programs are those of `jaxinfer plan`, of all layers; a process a model and mesh. Needs the extras compile-tpu and
compile-gpu. Nothing is read of what was compiled before.

    python benchmarks/plan_compiled.py CONFIG.json... [--mesh NAME...] [--json FILE]
"""

import argparse
import io
import json
import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.report import write_json
from jaxinfer.cli import plan
from jaxinfer.errors import ParameterError

MESHES = ("v6e-8", "h200-8")
BATCH, CONTEXT = 64, 8192


def main() -> None:
    """Compiles, prints the table and writes the file that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="+", type=Path, metavar="CONFIG.json")
    parser.add_argument("--mesh", nargs="+", default=MESHES)
    parser.add_argument("--json")
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as kept:
        os.environ["XDG_CACHE_HOME"] = kept
        for config in asked.configs:
            for mesh in asked.mesh:
                rows.append(_compiled(config, mesh))
                print(_line(rows[-1]), flush=True)
                write_json(asked.json, {"batch": BATCH, "context": CONTEXT, "rows": rows})


def _compiled(config: Path, mesh: str) -> dict[str, Any]:
    model, out = config.name.split(".json")[0].removesuffix(".shapes"), io.StringIO()
    flags = ["--batch", str(BATCH), "--context", str(CONTEXT), "--json"]
    try:
        with redirect_stdout(out):
            plan.run([str(config), "--mesh", mesh, *flags])
    except ParameterError as error:
        return {"model": model, "mesh": mesh, "error": error.message}
    (told,) = json.loads(out.getvalue())["meshes"]
    names = ("temporary_bytes", "estimated_temporary_bytes", "pages", "compiled")
    return {"model": model, "mesh": mesh, **{name: told[name] for name in names}}


def _line(row: dict[str, Any]) -> str:
    """Format a row of the table in jaxinfer/plan/README.md."""
    head = f"| {row['model']} | {row['mesh']} |"
    if "error" in row or row["compiled"]["obstacle"]:
        return f"{head} {row.get('error') or row['compiled']['obstacle']} |"
    found = row["compiled"]
    seconds, peak = (
        (sum(one["seconds"] for one in found["programs"]), max(one["peak"] for one in found["programs"]))
        if found["programs"]
        else (0.0, 0)
    )
    longest = max(found["programs"], key=lambda one: one["seconds"], default={"program": "-"})
    told, own = row["temporary_bytes"], row["estimated_temporary_bytes"]
    agrees = "; ".join([*found["differs"], *map(": ".join, found["problems"].items())]) or "equal"
    return (
        f"{head} {seconds:.0f} s ({longest['program']} most) | {peak / 2**30:.1f} GiB | {told / 2**20:,.0f} MiB | "
        f"{own / told:.2f} | {agrees} |"
    )


if __name__ == "__main__":
    main()
