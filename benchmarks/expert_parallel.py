"""Experts over eight devices of a CPU, with routing after Zipf's law: the busiest device's share of the tokens before
and after experts are placed by their load, with copies and without; and both ways that rows come to their experts,
timed at 1, 32 and 256 rows.

The devices share the machine's cores: times are of the work of all of them, not of a step over real ones.

    python benchmarks/expert_parallel.py [--json FILE] [--turns N] [--steps N]
"""

import argparse
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks.report import write_json

if TYPE_CHECKING:
    from jaxinfer.models.loaded import LoadedModel
    from jaxinfer.runner.jax_runner import JaxRunner

DEVICES, EXPERTS, CHOSEN, CHANNELS, HIDDEN, LAYERS, VOCABULARY = 8, 128, 8, 64, 256, 2, 1024
ROWS = (1, 32, 256)
COPIES = (None, 0, 8, 16)
"""None: experts are not placed by load. 0: placed, without copies."""
SEQUENCES, PROMPT = 32, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--turns", type=int, default=5, help="how often each time is taken")
    parser.add_argument("--steps", type=int, default=50, help="steps after which experts are placed")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    shares = [measured_share(copies, arguments.steps) for copies in COPIES]
    times = measured_times(arguments.turns)
    write_json(arguments.json, {"shares": shares, "times": times})


def skewed_model(copies: int) -> "LoadedModel":
    """A random model whose routers prefer experts after Zipf's law, in a random order in each layer."""
    import jax.numpy as jnp

    from jaxinfer.config import ParallelConfig
    from jaxinfer.model_config.decoder_config import DecoderConfig
    from jaxinfer.model_config.layer_kind import AttentionKind, LayerKind
    from jaxinfer.model_config.mlp_kind import ExpertsKind, RouterKind
    from jaxinfer.models.loaded import random_model
    from jaxinfer.parallel.asked_mesh import asked_mesh
    from jaxinfer.parallel.mesh import make_mesh

    mesh = replace(asked_mesh(ParallelConfig(mesh="ep8")), redundant_experts=copies)
    experts = ExpertsKind(EXPERTS, CHOSEN, CHANNELS, RouterKind(normalise=True, bias=True))
    layer = LayerKind(AttentionKind(num_heads=8, num_kv_heads=8, head_dim=32), experts)
    config = DecoderConfig(VOCABULARY, HIDDEN, 512, (layer,) * LAYERS).over(*mesh.parts)
    model = random_model(config, dtype=jnp.dtype("float32"), mesh=make_mesh(mesh), rules=mesh.rules)
    number = [one.path[-1] for one in model.plan.weights].index("router_bias")
    liking = -np.log(np.arange(1, EXPERTS + 1))
    rng = np.random.default_rng(0)
    biases = np.stack([liking[rng.permutation(EXPERTS)] for _ in range(LAYERS)]).astype(np.float32)
    weights = list(model.weights)
    weights[number] = jnp.asarray(biases, device=weights[number].sharding)
    return replace(model, weights=tuple(weights))


def measured_share(copies: int | None, steps: int) -> dict[str, Any]:
    """The busiest device's share of all rows of experts, mean of the layers, counted slot by slot on the devices: in
    the `steps` before experts are placed and in as many after."""
    from jaxinfer.config import SchedulerConfig
    from jaxinfer.engine.core import EngineCore
    from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
    from jaxinfer.engine.types import GenerateRequest, ModelInfo
    from jaxinfer.runner.experts.moves import ExpertMoves
    from jaxinfer.runner.jax_runner import JaxRunner
    from jaxinfer.sampling import SamplingParams

    model = skewed_model(copies or 0)
    shapes = EngineShapes(SEQUENCES, 64, SEQUENCES, 256, 16, (KVGroup(None, 16 * SEQUENCES),), VOCABULARY)
    runner = JaxRunner(model, shapes)
    if copies is not None:
        runner.stages[0]._moves = ExpertMoves(model, runner.stages[0]._load, steps)
    runner.warm_up(when="lazy")
    info = ModelInfo("random", 256, VOCABULARY, 1, 16, shapes.groups[0].num_blocks)
    core = EngineCore(runner, info, scheduler=SchedulerConfig(max_num_seqs=SEQUENCES), eos_ids=())
    rng = np.random.default_rng(1)
    for number in range(SEQUENCES):
        params = SamplingParams(max_tokens=2 * steps + 50, temperature=1.0, seed=number, ignore_eos=True)
        core.add_request(GenerateRequest(str(number), rng.integers(0, VOCABULARY, PROMPT).tolist(), params))
    found = {"copies": copies, "before": _share(core, runner, steps), "after": _share(core, runner, steps)}
    what = "as they come" if copies is None else f"placed, {copies} copies"
    print(f"{what:18} busiest of {DEVICES} devices: {found['before']:.1%}, then {found['after']:.1%}", flush=True)
    return found


def _share(core: Any, runner: "JaxRunner", steps: int) -> float:
    first = np.asarray(runner.stages[0]._load.dispatched)
    for _ in range(steps):
        core.step()
    counts = (np.asarray(runner.stages[0]._load.dispatched) - first).reshape(LAYERS, DEVICES, -1).sum(axis=2)
    return float(np.mean(counts.max(axis=1) / counts.sum(axis=1)))


def measured_times(turns: int) -> list[dict[str, Any]]:
    """Microseconds of a layer's experts by both forms, in turns: quartiles."""
    from jaxinfer.layers.dispatch import DISPATCH_FORMS
    from jaxinfer.runner.tuning.experts import time_experts

    model, found = skewed_model(0), []
    for rows in ROWS:
        times: dict[str, list[float]] = {form: [] for form in DISPATCH_FORMS}
        for _ in range(turns):
            for form in DISPATCH_FORMS:
                run = replace(model, dispatch_form=form)
                times[form].append(1e6 * time_experts(run, run.experts_backend, 0, rows))
        row = {"rows": rows, **{form: [round(us, 1) for us in quantiles(took, n=4)] for form, took in times.items()}}
        parts = "  ".join(f"{form} {row[form][1]:7.0f} us ({row[form][0]:.0f}-{row[form][2]:.0f})" for form in times)
        print(f"{rows:4} rows: {parts}", flush=True)
        found.append(row)
    return found


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    flag = f"--xla_force_host_platform_device_count={DEVICES}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    main()
