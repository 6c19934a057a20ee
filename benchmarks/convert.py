"""Starts from safetensors and from leaves (`jaxinfer convert --to orbax`): from process start to ready, and memory.

A random model is written, converted, and served from each folder in turns, with a warm compile cache: with its files in
the page cache of the system, and without (posix_fadvise). Memory is the largest that all processes of a server hold
together, and the engine process alone, sampled: pages of files that a process maps count, once for each.

    python benchmarks/convert.py [--json FILE] [--size 1b] [--runs N] [--folder FOLDER]

Without arguments: a model of a few MiB, one run of each kind, in about a minute.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.memory import sampled
from benchmarks.peers.engines import REPOSITORY
from benchmarks.peers.models import SMOLLM2_135M, TINY, make_folder
from benchmarks.report import provenance, write_json
from benchmarks.startup import start_once

SIZES: dict[str, dict[str, Any]] = {
    "tiny": TINY,
    "1b": {
        **SMOLLM2_135M,
        **{"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64},
    },
}
_SERVE = ["--dtype", "bfloat16", "--max-num-seqs", "2", "--max-model-len", "128", "--max-num-batched-tokens", "32"]


def main() -> None:
    asked = _arguments()
    with TemporaryDirectory(prefix="convert-") as made:
        work = Path(asked.folder or made)
        source = make_folder(work / "safetensors", SIZES[asked.size])
        converted = {name: _convert(source, work / f"orbax-{name}", name) for name in ("none", "int8")}
        starts = {
            "safetensors": [str(source)],
            "orbax": [str(work / "orbax-none")],
            "safetensors, --quantization int8": [str(source), "--quantization", "int8"],
            "orbax in int8": [str(work / "orbax-int8")],
        }
        runs = _runs(starts, work, asked.runs)
    result = {"size": asked.size, "convert": converted, "starts": {name: _medians(of) for name, of in runs.items()}}
    write_json(asked.json, {**result, "runs": runs}, provenance(packages=("orbax-checkpoint", "tensorstore")))
    _print(result)


def _convert(source: Path, out: Path, quantization: str) -> dict[str, float]:
    """Seconds, bytes on the disk, and the largest memory of the conversion."""
    if out.exists():
        return {}
    flags = ["--to", "orbax", "--dtype", "bfloat16", "--quantization", quantization]
    paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "kernels"), os.environ.get("PYTHONPATH", "")])
    start = time.perf_counter()
    with sampled() as memory:
        command = [sys.executable, "-m", "jaxinfer", "convert", str(source), str(out), *flags]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.DEVNULL)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    return {"seconds": round(time.perf_counter() - start, 2), "bytes": size, **memory}


def _runs(starts: dict[str, list[str]], work: Path, count: int) -> dict[str, list[dict[str, float]]]:
    """Time starts by folder and page cache; they take turns, after one start of each that fills the compile cache."""
    cache, log, runs = work / "cache", work / "log", dict[str, list[dict[str, float]]]()
    for flags in starts.values():
        start_once(cache, [*flags, *_SERVE], log)
    for _ in range(count):
        for name, flags in starts.items():
            for pages in ("cold", "warm"):
                if pages == "cold":
                    _forget(Path(flags[0]))
                with sampled() as memory:
                    seconds = start_once(cache, [*flags, *_SERVE], log).seconds
                run = {"ready": seconds["total"], "load": seconds["load"], **memory}
                runs.setdefault(f"{name}, {pages}", []).append(run)
                print(f"{name}, {pages}: ready after {run['ready']:.1f} s", flush=True)
    return runs


def _forget(folder: Path) -> None:
    """Has the system drop a folder's pages."""
    os.sync()
    for file in folder.rglob("*"):
        if file.is_file():
            opened = os.open(file, os.O_RDONLY)
            os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(opened)


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(median(run[name] for run in runs), 2) for name in runs[0]}


def _print(result: dict[str, Any]) -> None:
    starts = result["starts"]
    print(f"{'from':40}{'ready s':>9}{'load s':>9}{'MiB in all':>12}{'largest MiB':>13}")
    for name, of in starts.items():
        print(f"{name:40}{of['ready']:9.2f}{of['load']:9.2f}{of['all_mib']:12.0f}{of['largest_mib']:13.0f}")
    one, other = (starts[f"{name}, cold"]["ready"] for name in ("safetensors", "orbax"))
    print(f"ready after {one:.1f} s from safetensors and {other:.1f} s from leaves, files not in memory (median)")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the runs there")
    parser.add_argument("--size", choices=SIZES, default="tiny", help="of the model")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="of each kind")
    parser.add_argument("--folder", help="keep the model's folders there, on the disk that is to be measured")
    return parser.parse_args()


if __name__ == "__main__":
    main()
