"""Measure this machine's first device for `jaxinfer plan --calibration`: memory reads, and the engine's own products,
attention of decoding rows, sampling, and the rest of a layer, each at points of a grid. Medians.

    python benchmarks/calibrate.py --chip NAME FILE.json

--chip: a file of configs/chips, or cpu.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from itertools import product as pairs_of
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.device.ceilings import matmul_tflops, memory_rates
from benchmarks.device.rig import Rig, rig_runner, rig_shapes
from jaxinfer.config import EngineConfig, ModelConfig
from jaxinfer.layers.linear import Linear
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import LoadedModel, random_model
from jaxinfer.parallel.mesh_config import ONE_DEVICE
from jaxinfer.parallel.topology import TARGETS
from jaxinfer.plan.calibration import calibrated_chip
from jaxinfer.plan.chip import TABLES
from jaxinfer.plan.estimate import plan_mesh
from jaxinfer.plan.work import ShardRows
from jaxinfer.runner.platform.values import default_block_size, device_memory, platform_name
from jaxinfer.runner.sampler import sample_tokens
from jaxinfer.runner.state import unpack_params, zero_slots
from jaxinfer.runner.tuning.attention import choose_attention
from jaxinfer.runner.tuning.attention_timing import layer_seconds

_MOST_WEIGHTS = 64
"""Most weights of one product, however small they are."""
_RUNS = 7
_LAYERS, _STEPS = 8, 8
"""More layers, and steps that are timed, where what is left of a layer is measured."""


class Grid(NamedTuple):
    """Points of each table's axes. bytes: of weights that a run multiplies with. heads: of keys and values, and their
    size, of which a token has the bytes; each has two of queries. square: rows of the product of peak rate. keys: in
    the middle of tiles that attention takes at once, since a part of a tile costs as much as a whole."""

    read: int
    square: int
    bytes: int
    products: tuple[tuple[int, ...], ...]
    rows: tuple[int, ...]
    keys: tuple[int, ...]
    heads: tuple[tuple[int, int], ...]
    block_size: int
    sampling: tuple[tuple[int, ...], ...]
    widths: tuple[int, ...]


TINY = Grid(
    read=1 << 20,
    square=32,
    bytes=1 << 16,
    products=((1, 8), (64,), (64,)),
    rows=(1, 8),
    keys=(16,),
    heads=((1, 16),),
    block_size=16,
    sampling=((1, 8), (128,)),
    widths=(64,),
)
"""To see whether it runs."""
_CPU = Grid(
    read=256 << 20,
    square=1024,
    bytes=256 << 20,
    products=((1, 2, 8, 32, 128, 512), (256, 512, 1024, 2048), (512, 4096)),
    rows=(1, 8, 32),
    keys=(64, 192, 448),
    heads=((2, 64), (8, 128)),
    block_size=16,
    sampling=((1, 8, 32), (1 << 14, 1 << 17)),
    widths=(512, 2048),
)
_ACCELERATOR = Grid(
    read=2 << 30,
    square=8192,
    bytes=1 << 30,
    products=((1, 32, 256, 2048), (1024, 8192), (1024, 8192)),
    rows=(1, 32, 256),
    keys=(192, 1088, 4160),
    heads=((2, 128), (8, 128)),
    block_size=128,
    sampling=((1, 32, 256), (1 << 14, 1 << 17)),
    widths=(1024, 8192),
)


def main() -> None:
    """Measures, and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--chip", required=True)
    asked = parser.parse_args()
    _check(parser, asked.chip)
    unfinished = asked.file.with_name(f"{asked.file.name}.unfinished")
    try:
        unfinished.touch()  # what cannot be written is told before anything is measured
    except OSError as error:
        parser.error(f"{asked.file}: {error.strerror}")
    found = calibrate(asked.chip, grid_of(platform_name()))
    unfinished.write_text(json.dumps(found, indent=1) + "\n")
    unfinished.replace(asked.file)
    print(json.dumps(found, indent=1))


def _check(parser: argparse.ArgumentParser, chip: str) -> None:
    """Ends the process where the first device is none of `chip`."""
    if chip not in TARGETS:
        parser.error(f"--chip {chip}: must be one of {', '.join(TARGETS)}")
    device, platform = jax.local_devices()[0].device_kind, platform_name()
    if TARGETS[chip].platform != platform or not device.startswith(TARGETS[chip].kinds):
        parser.error(f"--chip {chip}: this machine has {platform}, {device}")


def grid_of(platform: str) -> Grid:
    """The points that are measured on a platform."""
    return _CPU if platform == "cpu" else _ACCELERATOR


def calibrate(chip: str, grid: Grid) -> dict[str, Any]:
    """Measure the device, in the form that `jaxinfer.plan.calibration` reads."""
    dtype = jnp.dtype("float32" if platform_name() == "cpu" else "bfloat16")
    found = {
        "chip": chip,
        "device": jax.local_devices()[0].device_kind,
        "memory_bytes": device_memory() or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "bytes_per_second": memory_rates(grid.read)["read_gb_per_s"] * 1e9,
        "ops_per_second": {dtype.name: matmul_tflops(grid.square, dtype) * 1e12},
        "tables": measured_tables(grid, dtype),
        "source": f"benchmarks/calibrate.py, jax {jax.__version__}",
    }
    found["tables"]["layer"] = _table("layer", _rest_of_layer(found, grid, dtype), (grid.rows, grid.widths))
    return found


def measured_tables(grid: Grid, dtype: jnp.dtype) -> dict[str, Any]:
    """Measure the tables, by their names in `jaxinfer.plan.chip.TABLES`."""
    models = {2 * heads * size * dtype.itemsize: _attending(heads, size, dtype) for heads, size in grid.heads}

    def attention(rows: int, keys: int, token: int) -> float:
        return layer_seconds(models[token], grid.block_size, 0, rows, keys - 1)

    def products(rows: int, inputs: int, outputs: int) -> float:
        return product_seconds(rows, inputs, outputs, grid.bytes, dtype)

    return {
        f"products.{dtype.name}": _table("products", products, grid.products),
        "attention": _table("attention", attention, (grid.rows, grid.keys, tuple(models))),
        "sampling": _table("sampling", sampling_seconds, grid.sampling),
    }


def _table(name: str, seconds: Callable[..., float], axes: tuple[tuple[int, ...], ...]) -> dict[str, Any]:
    found = np.array([seconds(*place) for place in pairs_of(*axes)])
    return {
        **dict(zip(TABLES[name], map(list, axes), strict=True)),
        "seconds": found.reshape([len(points) for points in axes]).tolist(),
    }


def product_seconds(rows: int, inputs: int, outputs: int, size: int, dtype: jnp.dtype) -> float:
    """Measure a product with each of several weights in turn, of `size` bytes together at most."""
    count = max(min(size // (outputs * inputs * dtype.itemsize), _MOST_WEIGHTS), 2)
    weights = tuple(jax.random.normal(jax.random.key(i), (outputs, inputs), dtype) for i in range(count))
    x = jax.random.normal(jax.random.key(count), (rows, inputs), dtype)

    @jax.jit
    def every(x: jax.Array, weights: tuple[jax.Array, ...]) -> jax.Array:
        for weight in weights:
            x = x + 1e-3 * Linear(weight).sums(x)[:, :1].astype(x.dtype)  # each waits for the one before it
        return x

    return _seconds(lambda: every(x, weights)) / count


def sampling_seconds(rows: int, columns: int) -> float:
    """Measure the sampling of greedy rows without other options."""
    model = _attending(1, 64, jnp.dtype("float32"), columns)
    made = zero_slots(rig_shapes(model.config, rows=rows, tokens=rows, length=64, block_size=16), columns)
    logits, slots = jax.random.normal(jax.random.key(0), (rows, columns)), jnp.arange(rows)
    assert made.state is not None
    assert made.params is not None
    counts, own = made.state.counts, unpack_params(made.params[slots])
    places, nothing = jnp.full(rows, 8), jnp.full(rows, -1)
    draw = jax.jit(sample_tokens)
    return _seconds(lambda: draw(logits, counts, slots, own, places, nothing, made.masks))


def _rest_of_layer(found: dict[str, Any], grid: Grid, dtype: jnp.dtype) -> Callable[[int, int], float]:
    """Return a function that measures the rest of a layer by rows and width: steps of models with one layer and with
    more, less what is planned from the other measurements."""
    chip, keys = calibrated_chip(found, Path("measured")), grid.keys[0]
    rigs: dict[int, list[tuple[DecoderConfig, Rig]]] = {}

    def seconds(rows: int, width: int) -> float:
        if width not in rigs:
            rigs[width] = [
                _rig(config, grid, dtype) for config in (_model(width, layers) for layers in (1, 1 + _LAYERS))
            ]
        beside = []
        for config, rig in rigs[width]:
            engine = EngineConfig(load=ModelConfig(max_model_len=grid.keys[-1]))
            planned = plan_mesh(engine, config, ONE_DEVICE, "this", chip).time(ShardRows(rows, 1, keys)).seconds
            beside.append(median(rig.decode_seconds(rows, keys - _STEPS // 2, _STEPS, _RUNS)) - planned)
        return max((beside[1] - beside[0]) / _LAYERS, 1e-9)

    return seconds


def _rig(config: DecoderConfig, grid: Grid, dtype: jnp.dtype) -> tuple[DecoderConfig, Rig]:
    most = max(grid.rows)
    shapes = rig_shapes(config, rows=most, tokens=most, length=2 * grid.keys[0], block_size=grid.block_size)
    return config, Rig(rig_runner(random_model(config, dtype=dtype), shapes))


def _attending(heads: int, size: int, dtype: jnp.dtype, vocabulary: int = 64) -> LoadedModel:
    """A model of one small layer that has these heads of keys and values."""
    config = _model(64, 1, heads, size, vocabulary)
    shapes = rig_shapes(config, rows=8, tokens=64, length=1024, block_size=default_block_size())
    return choose_attention(random_model(config, dtype=dtype), shapes, "auto", None)


def _model(width: int, layers: int, heads: int = 2, size: int = 64, vocabulary: int = 1024) -> DecoderConfig:
    sizes = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "vocab_size": vocabulary,
    }
    attention = {"num_attention_heads": 2 * heads, "num_key_value_heads": heads, "head_dim": size}
    others = {"max_position_embeddings": 1 << 16, "rms_norm_eps": 1e-5, "architectures": ["LlamaForCausalLM"]}
    return parse_config({**sizes, **attention, **others})


def _seconds(run: Callable[[], Any]) -> float:
    jax.block_until_ready(run())
    times = []
    for _ in range(_RUNS):
        begin = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - begin)
    return median(times)


if __name__ == "__main__":
    main()
