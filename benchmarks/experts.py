"""A decode step of one row with 8 experts a layer and with 128, of which as many are chosen: what is not chosen must
cost nothing.

Engines run their steps in turns, so that whatever else the machine does falls on all of them. Each step computes
another token, so that experts change from step to step.

    python benchmarks/experts.py [--json FILE] [--turns N] [--steps N]
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax.numpy as jnp

from benchmarks.report import write_json
from jaxinfer.config import SchedulerConfig
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.engine.types import GenerateRequest, ModelInfo
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import AttentionKind, LayerKind
from jaxinfer.model_config.mlp_kind import ExpertsKind, MlpKind, RouterKind
from jaxinfer.models.loaded import random_model
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.sampling import SamplingParams

HIDDEN, LAYERS, VOCABULARY, CONTEXT, BLOCK = 512, 2, 1024, 1024, 16
TYPES = ("bfloat16", "float32")


class Experts(NamedTuple):
    """Experts of a layer: how many, how many a token chooses, and channels of each."""

    count: int
    chosen: int
    size: int

    def __str__(self) -> str:
        return f"{self.chosen} of {self.count} x {self.size}"


CASES = (Experts(8, 2, 512), Experts(128, 2, 512), Experts(128, 8, 128))
"""All have the same number of active parameters."""


def make_engine(experts: Experts, dtype: str) -> EngineCore:
    """An engine with one request, which decodes."""
    kind = MlpKind(experts.size, experts=ExpertsKind(*experts, RouterKind(normalise=True)))
    layer = LayerKind(AttentionKind(num_heads=8, num_kv_heads=4, head_dim=64), kind)
    config = DecoderConfig(VOCABULARY, HIDDEN, CONTEXT, (layer,) * LAYERS)
    shapes = EngineShapes(1, 64, 1, CONTEXT, BLOCK, (KVGroup(None, CONTEXT // BLOCK + 2),), VOCABULARY)
    runner = JaxRunner(random_model(config, dtype=jnp.dtype(dtype)), shapes)
    runner.warm_up(lazy=True)
    info = ModelInfo("random", CONTEXT, VOCABULARY, 1, BLOCK, shapes.groups[0].num_blocks)
    core = EngineCore(runner, info, scheduler=SchedulerConfig(max_num_seqs=1), eos_ids=(), steps_ahead=0)
    params = SamplingParams(max_tokens=None, temperature=1.0, seed=0, ignore_eos=True)
    core.add_request(GenerateRequest("a", list(range(8)), params))
    for _ in range(4):
        core.step()
    return core


def step_us(core: EngineCore, steps: int) -> float:
    """The median of so many steps, in microseconds."""
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        core.step()
        times.append(time.perf_counter() - begin)
    return 1e6 * median(times)


def measure(dtype: str, turns: int, steps: int) -> dict[str, list[float]]:
    """Microseconds of a step in each turn, by case."""
    engines = {str(case): make_engine(case, dtype) for case in CASES}
    found: dict[str, list[float]] = {case: [] for case in engines}
    for _ in range(turns):
        for case, core in engines.items():
            found[case].append(round(step_us(core, steps), 1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--turns", type=int, default=9, metavar="N", help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=12, metavar="N", help="steps a turn; default: %(default)s")
    asked = parser.parse_args()
    found = {dtype: measure(dtype, asked.turns, asked.steps) for dtype in TYPES}
    ratios = {}
    for dtype, cases in found.items():
        base = median(cases[str(CASES[0])])
        ratios[dtype] = {case: round(median(times) / base, 3) for case, times in cases.items()}
        for case, times in cases.items():
            shown = f"{median(times):7.0f} µs ({min(times):.0f} to {max(times):.0f})"
            print(f"{dtype:9} {case:14} {shown}, {ratios[dtype][case]:.2f} of the first")
    sizes = {"hidden": HIDDEN, "layers": LAYERS, "vocabulary": VOCABULARY}
    write_json(asked.json, {"model": sizes, "step_us": found, "ratios": ratios})


if __name__ == "__main__":
    main()
