"""Pipelines of a small model against one device: `python -m tests.runner.pipeline_matrix MODEL [MESH...]`.

With XLA_FLAGS=--xla_force_host_platform_device_count=8. All values of two of mesh, quantisation, layout, steps ahead,
blocks and drafter meet for each model.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.build import DEMO_FOLDER
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.models.loaded import load_model, load_stages
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.quantization.kv import KV_CODES
from jaxinfer.runner.fit.kv_measure import needs_measuring, with_scales_of_stages
from jaxinfer.runner.fit.layer_spans import layer_spans
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.step.draft_model import with_draft
from jaxinfer.runner.step.stage import StagedModel, stage_meshes
from jaxinfer.sampling import SamplingParams
from jaxinfer.speculation import Speculation
from tests.engine.outputs import Outputs
from tests.engine.toy_grammar import Toy, ToyConstraints
from tests.quantization.checkpoints import config_of, made
from tests.runner.mesh_matrix import EXPERTS, FEW, SMALL, WHOLE, compare, plain, requests
from tests.runner.pairwise import pairwise
from tests.runner.tiny import drive, make_core, tiny_shapes

EOS = (9,)
_SIXES = ["sliding_attention"] * 5 + ["full_attention"]
MODELS: dict[str, dict[str, Any]] = {
    "five layers": {**SMALL, "num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": 5},
    "windows in sixes": {
        **SMALL,
        **{"architectures": ["MistralForCausalLM"], "sliding_window": 12, "num_attention_heads": 8},
        **{"num_key_value_heads": 4, "num_hidden_layers": 13, "layer_types": (_SIXES * 3)[:13]},
    },
    "dense first": {**EXPERTS, "num_experts": 8, "num_hidden_layers": 5, "mlp_only_layers": [0]},
    "tied": {
        **SMALL,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_hidden_layers": 4,
        "tie_word_embeddings": True,
    },
}
MESHES = {
    "pp2": MeshConfig({"stage": 2}),
    "pp3": MeshConfig({"stage": 3}),
    "pp4": MeshConfig({"stage": 4}),
    "pp2-tp4": MeshConfig({"stage": 2, "tensor": 4}),
    "pp2-ep4": MeshConfig({"stage": 2, "tensor": 4}, WHOLE),
    "pp2-data2-tp2": MeshConfig({"data": 2, "stage": 2, "tensor": 2}),
}
TABLE: dict[str, Any] = {
    "mesh": tuple(MESHES),
    "numbers": (("none", "auto"), ("int8", "int8")),
    "layout": ("unrolled", "stacked"),
    "ahead": (0, 1, 4),
    "blocks": (400, FEW),
    "drafts": (None, "ngram", "draft_model"),
}
"""numbers: quantisation of weights, and of keys and values. ahead: steps ahead of the device. drafts: by whom; a draft
model is here the model itself, whose drafts are right unless penalties say otherwise."""


ALONE = {"ahead": 1, "blocks": 400, "layout": "unrolled", "drafts": None}


def all_requests() -> Iterator[GenerateRequest]:
    """Those of meshes, and two under grammars."""
    yield from requests()
    for number, forces in enumerate((False, True)):
        asked = {"structured_outputs": Toy(5, 20, forces).constraint, "temperature": 0.7, "seed": number, "logprobs": 5}
        yield GenerateRequest(f"grammar {number}", list(range(number, 7)), SamplingParams(max_tokens=14, **asked))


def answers(folder: Path, mesh: MeshConfig, how: Mapping[str, Any]) -> tuple[Outputs, int]:
    """What an engine gives, and how often it preempted. Of several stages nothing compiles once it is ready."""
    quantization, kv = how["numbers"]
    config = config_of(folder).quantised(quantization).keeping(KV_CODES[kv]).over(*mesh.parts)
    dtype, devices = jnp.dtype("float32"), make_mesh(mesh)
    place = {"meshes": stage_meshes(devices), "rules": mesh.rules, "layout": how["layout"]}
    spans = layer_spans(None, config, dtype, "cpu", mesh)
    parts = load_stages(folder, config, spans, dtype=dtype, **place)
    if needs_measuring(parts[0]):
        parts = with_scales_of_stages(parts, range(config.vocab_size))
    drafting = None
    if (method := how["drafts"]) is not None:
        drafting = Speculation(3, 1, 2, method)
    if method == "draft_model":
        draft = load_model(folder, config, dtype=dtype, mesh=place["meshes"][0], rules=mesh.rules)
        parts = (with_draft(parts[0], draft), *parts[1:])
    model = StagedModel(parts)
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 64, "max_scored": 4}
    sizes |= {"blocks": how["blocks"], "shards": mesh.data, "stages": mesh.stages, "drafting": drafting}
    shapes = tiny_shapes(model, **sizes, few_sizes=False)  # which only one CPU device has
    runner = JaxRunner(model, shapes)
    runner.warm_up(when="lazy" if mesh.stages == 1 else "all")
    asked = {"eos": EOS, "constraints": ToyConstraints(config.vocab_size), "clock": lambda: 0}  # every step drafts
    core = make_core(runner, ahead=how["ahead"], **asked)
    outputs = drive(core, list(all_requests()))
    assert mesh.stages == 1 or not runner.status().compiles_after_ready
    stats = core.stats()
    assert (stats.drafts.draft_tokens > 0) == (method is not None), "drafts"
    return outputs, stats.scheduler.preemptions


def compare_few_blocks() -> None:
    """Preempt on two stages of four devices with whole experts."""
    with TemporaryDirectory() as folder:
        fields = {**MODELS["dense first"], "num_hidden_layers": 3}
        path = made(fields, {}, plain, left=()).write_plain(Path(folder))
        how = {"numbers": ("none", "auto"), "layout": "unrolled", "ahead": 2, "blocks": FEW, "drafts": None}
        right, _ = answers(path, ONE_DEVICE, how)
        for drafts in (None, "draft_model"):
            found, preemptions = answers(path, MESHES["pp2-ep4"], {**how, "drafts": drafts})
            compare(found, right, 1e-4)
            assert preemptions


def main(name: str, *chosen: str, only: int | None = None) -> None:
    """Engines for each mesh of `chosen`, by default all: those in which all pairs of values meet. only: one of them, by
    any number."""
    table = [how for how in pairwise(TABLE) if how["mesh"] in (chosen or MESHES)]
    with TemporaryDirectory() as folder:
        path = DEMO_FOLDER if name == "demo" else made(MODELS[name], {}, plain, left=()).write_plain(Path(folder))
        alone: dict[tuple[str, str], Outputs] = {}
        for how in table if only is None else [table[only % len(table)]]:
            numbers, mesh = how["numbers"], MESHES[how["mesh"]]
            if numbers not in alone:
                alone[numbers], _ = answers(path, ONE_DEVICE, {**how, **ALONE})
            found, preemptions = answers(path, mesh, how)
            compare(found, alone[numbers], 1e-4 if numbers == ("none", "auto") else 1e-3)
            assert preemptions or how["blocks"] > FEW or mesh.data > 1, "nobody was preempted"
            print(name, *how.values(), "equal", flush=True)
            jax.clear_caches()


if __name__ == "__main__":
    main(*sys.argv[1:])
