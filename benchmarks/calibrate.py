"""What this machine's first device does at best, for `jaxinfer plan --calibration`: memory read, and products by rows.

Products are the engine's own, of rows with weights that no cache holds. Medians of nine runs.

    python benchmarks/calibrate.py --chip NAME FILE.json

--chip: a file of configs/chips, or cpu.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp

from benchmarks.device.ceilings import matmul_tflops, memory_rates
from jaxinfer.layers.linear import product
from jaxinfer.parallel.topology import TARGETS
from jaxinfer.runner.platform import device_memory, platform_name

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_OUT, _IN, _BYTES = 4096, 1024, 384 << 20
"""A weight, and of all that one run multiplies with."""
_READ = {"cpu": 256 << 20}
_RUNS = 9


def main() -> None:
    """Measures, and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--chip", required=True)
    asked = parser.parse_args()
    _check(parser, asked.chip)
    asked.file.touch()  # what cannot be written is told before anything is measured
    found = calibrate(asked.chip)
    asked.file.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def _check(parser: argparse.ArgumentParser, chip: str) -> None:
    """Ends the process where the first device is none of `chip`."""
    if chip not in TARGETS:
        parser.error(f"--chip {chip}: must be one of {', '.join(TARGETS)}")
    device, platform = jax.local_devices()[0].device_kind, platform_name()
    if TARGETS[chip].platform != platform or not device.startswith(TARGETS[chip].kinds):
        parser.error(f"--chip {chip}: this machine has {platform}, {device}")


def calibrate(chip: str) -> dict[str, Any]:
    """As `jaxinfer.plan.calibration` reads it, of one device."""
    platform = platform_name()
    dtype = jnp.dtype("float32" if platform == "cpu" else "bfloat16")
    return {
        "chip": chip,
        "device": jax.local_devices()[0].device_kind,
        "memory_bytes": device_memory() or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "bytes_per_second": memory_rates(_READ.get(platform, 2 << 30))["read_gb_per_s"] * 1e9,
        "ops_per_second": {dtype.name: matmul_tflops(1024 if platform == "cpu" else 8192, dtype) * 1e12},
        "products": {dtype.name: [[rows, number_seconds(rows, dtype)] for rows in ROWS]},
        "source": f"benchmarks/calibrate.py, jax {jax.__version__}",
    }


def number_seconds(rows: int, dtype: jnp.dtype) -> float:
    """Seconds for each number of the weights, of products of so many rows."""
    count = max(_BYTES // (_OUT * _IN * dtype.itemsize), 2)
    weights = tuple(jax.random.normal(jax.random.key(i), (_OUT, _IN), dtype) for i in range(count))
    x = jax.random.normal(jax.random.key(count), (rows, _IN), dtype)

    @jax.jit
    def every(x: jax.Array, weights: tuple[jax.Array, ...]) -> jax.Array:
        for weight in weights:
            x = x + 1e-3 * product(x, weight)[:, :_IN].astype(x.dtype)  # each waits for the one before it
        return x

    seconds = []
    for _ in range(_RUNS + 1):
        begin = time.perf_counter()
        every(x, weights).block_until_ready()
        seconds.append(time.perf_counter() - begin)
    return median(seconds[1:]) / (count * _OUT * _IN)


if __name__ == "__main__":
    main()
