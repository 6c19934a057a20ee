"""Engines of one small model over meshes, against one device: `python -m tests.runner.mesh_matrix MODEL [MESH...]`.

With XLA_FLAGS=--xla_force_host_platform_device_count=8. All meshes of a model take some six minutes.

Each mesh meets some of the circumstances; every request set has prompts in chunks, prefixes in common, forks,
penalties, log-probabilities, greedy rows and seeded ones.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.engine.types import GenerateRequest
from jaxinfer.layers.stack import Layout
from jaxinfer.models.loaded import LoadedModel, load_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.parallel.rules import ShardingRules
from jaxinfer.quantization.kv import KV_CODES
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.sampling import SamplingParams
from jaxinfer.speculation import Speculation
from tests.engine.outputs import Output, Outputs
from tests.quantization.checkpoints import LLAMA, MOE, config_of, made
from tests.runner.tiny import drive, make_core, tiny_shapes

SMALL = {**LLAMA, "hidden_size": 128, "intermediate_size": 256, "head_dim": 16, "max_position_embeddings": 96}


def _heads(query: int, kv: int, **changes: Any) -> dict[str, Any]:
    return {**SMALL, "num_attention_heads": query, "num_key_value_heads": kv, **changes}


WINDOWED = {"architectures": ["MistralForCausalLM"], "sliding_window": 12}
EXPERTS = {**MOE, **_heads(8, 4), "architectures": MOE["architectures"], "moe_intermediate_size": 64}
MODELS = {
    "dense": _heads(8, 8),
    "windowed": _heads(8, 4, **WINDOWED),
    "one KV head": _heads(8, 1),
    "two KV heads": _heads(8, 2),
    "14 heads": _heads(14, 2),
    "28 heads": _heads(28, 4),
    "vocabulary of 49,155": _heads(8, 8, vocab_size=49155),
    "experts": {**EXPERTS, "num_experts": 8},
}
WHOLE = ShardingRules(expert=("expert", "tensor"), expert_mlp=())
MESHES = {
    "tp2": MeshConfig({"tensor": 2}),
    "tp4": MeshConfig({"tensor": 4}),
    "tp8": MeshConfig({"tensor": 8}),
    "ep4": MeshConfig({"tensor": 4}, WHOLE),
    "ep8": MeshConfig({"expert": 2, "tensor": 4}, WHOLE),
    "data2-tp4": MeshConfig({"data": 2, "tensor": 4}),
}


class Circumstances(NamedTuple):
    """How an engine runs. blocks: few of them, so that sequences are preempted. ahead: steps ahead of the device.
    layout: of the model's layers. drafts: of a row; a step drafts where it may."""

    quantization: str = "none"
    kv: str = "auto"
    decode_steps: int = 1
    blocks: int = 400
    ahead: int = 1
    layout: Layout = "unrolled"
    drafts: int = 0


FEW = 13
"""Blocks of 4 tokens: the longest sequence has 12 of them, and others are preempted for it."""
TABLE = (
    (Circumstances(blocks=FEW), Circumstances(decode_steps=4, layout="stacked")),
    (Circumstances(decode_steps=4, blocks=FEW, ahead=0), Circumstances(ahead=3, layout="stacked", drafts=3)),
    (Circumstances("int8", blocks=FEW, decode_steps=4, layout="stacked"), Circumstances(ahead=0)),
    (Circumstances("int8", "int8"), Circumstances(decode_steps=4, ahead=3, layout="stacked")),
)
"""Those of a mesh follow from its place and the model's."""


def requests() -> Iterator[GenerateRequest]:
    """Eight requests, thirteen sequences; prompts share a beginning of 20 tokens, and are longer than a step."""
    greedy: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 1.2, "logprobs": 5}
    drawn: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "presence_penalty": 0.3}
    shared = [(7 * i + 3) % 80 for i in range(20)]
    for i in range(4):
        prompt = [*shared[: 20 - 4 * (i % 2)], *range(i, i + 3 * i + 1)]
        yield GenerateRequest(f"greedy {i}", prompt, SamplingParams(max_tokens=9 + i, **greedy))
        yield GenerateRequest(f"drawn {i}", prompt, SamplingParams(max_tokens=8, seed=i, n=1 + i % 3, **drawn))


def model_over(folder: Path, mesh: MeshConfig, how: Circumstances) -> LoadedModel:
    config = config_of(folder).quantised(how.quantization).keeping(KV_CODES[how.kv])
    config = config.over(*mesh.parts)
    place = {"mesh": make_mesh(mesh), "rules": mesh.rules}
    return load_model(folder, config, dtype=jnp.dtype("float32"), layout=how.layout, **place)


def answers(folder: Path, mesh: MeshConfig, how: Circumstances) -> tuple[Outputs, int]:
    """What an engine gives, and how often it preempted. Of several devices nothing compiles once it is ready."""
    model = model_over(folder, mesh, how)
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 64, "max_scored": 4}
    sizes |= {"decode_steps": how.decode_steps, "blocks": how.blocks, "shards": mesh.data}
    sizes |= {"drafting": Speculation(how.drafts, 1, 2) if how.drafts else None}
    runner = JaxRunner(model, tiny_shapes(model, **sizes))
    runner.warm_up(when="lazy" if mesh == ONE_DEVICE else "all")
    core = make_core(runner, ahead=how.ahead, clock=lambda: 0)  # with such a clock every step drafts
    outputs = drive(core, list(requests()))
    assert mesh == ONE_DEVICE or not runner.status().compiles_after_ready
    return outputs, core.stats().scheduler.preemptions


def compare(found: Outputs, right: Outputs, atol: float) -> None:
    """Tokens are equal up to where the likeliest two are as close as the numbers may differ; log-probabilities are
    within `atol` up to there."""
    for key, output in right.items():
        other, count = found[key], _equal(found[key], output)
        if count < len(output.tokens) or len(other.tokens) != len(output.tokens):
            assert output.logprobs, (key, other.tokens, output.tokens)
            assert _margin(output, count) < 2 * atol, (key, count, other.tokens, output.tokens)
        for one, two in zip(other.logprobs[:count], output.logprobs[:count], strict=True):
            np.testing.assert_allclose(one.logprob, two.logprob, atol=atol)


def _equal(one: Output, two: Output) -> int:
    pairs = zip(one.tokens, two.tokens, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one.tokens), len(two.tokens)))


def _margin(output: Output, at: int) -> float:
    (_, first), (_, second), *_ = output.logprobs[at].top
    return first - second


def main(name: str, *chosen: str) -> None:
    """Two engines for each mesh of `chosen`, by default all that split the model."""
    place = list(MODELS).index(name)
    with TemporaryDirectory() as folder:
        path = made(MODELS[name], {}, plain, left=()).write_plain(Path(folder))
        alone: dict[tuple[str, str], Outputs] = {}
        for number, (mesh_name, mesh) in enumerate(MESHES.items()):
            if mesh_name not in (chosen or MESHES) or ("ep" in mesh_name and name != "experts"):
                continue
            for how in TABLE[(number + place) % len(TABLE)]:
                numbers = how.quantization, how.kv
                if numbers not in alone:
                    alone[numbers], _ = answers(path, ONE_DEVICE, Circumstances(*numbers))
                found, preemptions = answers(path, mesh, how)
                compare(found, alone[numbers], 1e-4 if numbers == ("none", "auto") else 1e-3)
                assert preemptions or how.blocks > FEW, "nobody was preempted"
                print(name, mesh_name, how, "equal", flush=True)
                jax.clear_caches()


def plain(rng: np.random.Generator, module: str, rows: int, columns: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    values = (rng.standard_normal((rows, columns)) * 0.1).astype("f4")
    return {f"{module}.weight": values}, values


if __name__ == "__main__":
    main(*sys.argv[1:])
