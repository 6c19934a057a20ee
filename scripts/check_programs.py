"""Compiles the engine's step programs for TPUs and GPUs on a machine that has none, and fails where one would copy KV
blocks or weights: `.venv/bin/python scripts/check_programs.py [--targets v6e,h200] [--all]`.

Programs are those of the engine's own `Programs`, over models without values. By default they have the first layers of
each model, since layers are alike, and some are not compiled for every kind of TPU; `--all` takes every layer, bucket
and program. Needs the extras compile-tpu and compile-gpu, as `python -m jaxinfer_kernels.check` does, whose table this
is.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxinfer_kernels import KVLayout, unavailable
from jaxinfer_kernels.check.cases import Case, Lowering, array_bytes, kept_pages, kept_weights
from jaxinfer_kernels.check.command import RECORDS, main
from jaxinfer_kernels.check.table import size
from jaxinfer_kernels.check.targets import Target
from jaxinfer_kernels.layouts import platform_layout

from jaxinfer.engine.step.buckets import make_buckets
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.mlp_kind import ExpertsKind
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import GroupBackend, LoadedModel, ModelPlan, plan_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.rules import DEFAULT_RULES
from jaxinfer.runner.program_table import Name
from jaxinfer.runner.programs import Programs

_DTYPE = jnp.dtype("bfloat16")
# Tokens are a multiple of 15 and blocks an odd count, so that no activation has the size of a weight or of the blocks.
_ROWS, _TOKENS, _LENGTH = 256, 1920, 8192
_BLOCK_SIZE = {"tpu": 128, "cuda": 64}  # as runner/platform.py has it
_KV_BLOCKS = 2049
_SMALL = 8
_FEW_LAYERS = 2
_DECODE_STEPS = 8
_CHOSEN = 8
_BACKENDS = {"tpu": ("mosaic_tpu",), "cuda": ("mosaic_gpu", "xla")}
# Without a kernel of ours, programs differ little between TPUs; the largest takes minutes to compile.
_LEFT_OUT = {"v5e": ("admit", "sample", "mixed"), "v5p": ("admit", "sample", "mixed"), "v7x": ("admit", "sample")}


class Sizes(NamedTuple):
    """What config.json says of a model. experts: of each layer, of which a token chooses `_CHOSEN`; 0 for one MLP."""

    model: str
    family: str
    vocabulary: int
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    dim: int
    tied: bool
    experts: int = 0


MODELS = (
    Sizes("Qwen3-0.6B", "qwen3", 151936, 1024, 3072, 28, 16, 8, 128, True),
    Sizes("Llama-3.1-8B", "llama", 128256, 4096, 14336, 32, 32, 8, 128, False),
    Sizes("Qwen2.5-0.5B", "qwen2", 151936, 896, 4864, 24, 14, 2, 64, True),
)
EXPERTS = tuple(
    Sizes(f"Qwen3-30B-A3B with {experts} experts", "qwen3", 151936, 2048, 768, 48, 32, 4, 128, False, experts)
    for experts in (8, 128)
)
"""A token chooses as many of either: they differ in what is not chosen alone."""


def program_cases(target: Target, everything: bool) -> list[Case]:
    """Programs of every model, for one device of the target."""
    first, *others = (backend for backend in _BACKENDS[target.platform] if not unavailable(backend))
    if everything:
        cases = [case for sizes in MODELS for case in _model_cases(target, sizes, sizes.layers, first, _every_name)]
    else:
        cases = _model_cases(target, MODELS[0], _FEW_LAYERS, first, partial(_some_names, target))
        # The second has larger weights. Its admit and sample follow slots and the vocabulary, as the first's do; its
        # mixed program takes minutes to compile for a TPU.
        cases += _model_cases(target, MODELS[1], _FEW_LAYERS, first, lambda shapes: _largest_forward(shapes)[:1])
    for sizes in EXPERTS:
        for backend in (first, *others):
            cases += _model_cases(target, sizes, 1, backend, lambda shapes: [("decode", make_buckets(shapes).rows[0])])
    return cases + [
        case for other in others for case in _model_cases(target, MODELS[0], _FEW_LAYERS, other, _largest_forward)
    ]


def _model_cases(
    target: Target, sizes: Sizes, layers: int, backend: str, names: Callable[[EngineShapes], Sequence[Name]]
) -> list[Case]:
    config, block_size, layout = _config(sizes, layers), _BLOCK_SIZE[target.platform], platform_layout(target.platform)
    plan, shapes = plan_model(config, _DTYPE), _shapes(config, block_size)
    (group,) = config.kv_groups
    kv_shape = layout.shape(
        layers=layers,
        pages=_KV_BLOCKS,
        page_size=block_size,
        kv_heads=group.kv.heads,
        key_dim=group.kv.key_dim,
        value_dim=group.kv.value_dim,
    )
    described = [(".".join(map(str, w.path)), w.shape, w.dtype) for w in (*plan.weights, *plan.head)]
    needed = array_bytes(kv_shape, _DTYPE) + sum(array_bytes(shape, kind) for _, shape, kind in described)
    programs = cache(partial(_programs, plan, shapes, backend, layout))
    return [
        Case(
            f"{name[0]} {name[1]}".removesuffix(" 0"),
            f"{sizes.model}, {layers} layers, {backend}",
            partial(_lower, programs, name),
            (*kept_pages(kv_shape, _DTYPE, layout), *kept_weights(described)),
            array_bytes(kv_shape, _DTYPE) if name[0] in ("decode", "mixed", "multi_step") else 0,
            "" if needed < target.hbm_bytes else f"weights and KV blocks take {size(needed)}, more than a device has",
        )
        for name in names(shapes)
    ]


def _some_names(target: Target, shapes: EngineShapes) -> list[Name]:
    buckets = make_buckets(shapes)
    small: list[Name] = [("admit", 0), ("decode", _SMALL), ("multi_step", _SMALL)]
    names = [*small, *_largest_forward(shapes), ("sample", buckets.scored[-1])]
    return [name for name in names if name[0] not in _LEFT_OUT.get(target.name, ())]


def _largest_forward(shapes: EngineShapes) -> list[Name]:
    buckets = make_buckets(shapes)
    return [("decode", buckets.rows[-1]), ("mixed", buckets.tokens[-1])]


def _every_name(shapes: EngineShapes) -> list[Name]:
    buckets = make_buckets(shapes)
    forward = [("mixed", tokens) for tokens in buckets.tokens] + [("decode", rows) for rows in buckets.rows]
    multi_step: Name = ("multi_step", buckets.rows[-1])
    return [("admit", 0), *forward, multi_step, *(("sample", scored) for scored in buckets.scored)]


def _lower(programs: Any, name: Name, devices: Sequence[Any]) -> Lowering:
    made = programs(tuple(devices[:1]))
    with jax.sharding.use_abstract_mesh(make_mesh(devices=devices[:1]).abstract_mesh):
        return Lowering(made.lower(name), made.options)


def _programs(
    plan: ModelPlan, shapes: EngineShapes, backend: str, layout: KVLayout, devices: tuple[Any, ...]
) -> Programs:
    return Programs(_model(plan, GroupBackend(backend, layout), devices), shapes)


def _model(plan: ModelPlan, backend: GroupBackend, devices: tuple[Any, ...]) -> LoadedModel:
    """A model whose weights are shapes with shardings."""
    mesh = make_mesh(devices=devices)
    every: list[Any] = [
        jax.ShapeDtypeStruct(
            weight.shape, weight.dtype, sharding=DEFAULT_RULES.sharding(mesh, weight.axes, weight.shape)
        )
        for weight in (*plan.weights, *plan.head)
    ]
    weights = tuple(every[: len(plan.weights)])
    embed = next(index for index, weight in enumerate(plan.weights) if weight.path == ("embed",))
    head = tuple(every[len(weights) :]) or (weights[embed],)
    return LoadedModel(
        plan.config, _DTYPE, mesh, DEFAULT_RULES, plan.graph, plan.tree, weights, head, (backend,), backend.name
    )


def _config(sizes: Sizes, layers: int) -> DecoderConfig:
    architecture = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}
    declared = {
        "architectures": [architecture[sizes.family]],
        "model_type": sizes.family,
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.inner,
        "num_hidden_layers": layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 500000.0,
        "tie_word_embeddings": sizes.tied,
    }
    if sizes.family != "qwen2":
        declared["head_dim"] = sizes.dim
    config = parse_config(declared)
    return _with_experts(config, ExpertsKind(sizes.experts, _CHOSEN, sizes.inner)) if sizes.experts else config


def _with_experts(config: DecoderConfig, experts: ExpertsKind) -> DecoderConfig:
    layers = [replace(layer, mlp=replace(layer.mlp, experts=experts)) for layer in config.layers]
    return replace(config, layers=tuple(layers))


def _shapes(config: DecoderConfig, block_size: int) -> EngineShapes:
    return EngineShapes(
        max_num_seqs=_ROWS,
        max_num_batched_tokens=_TOKENS,
        max_scored=_ROWS,
        max_model_len=_LENGTH,
        block_size=block_size,
        groups=tuple(KVGroup(group.window, _KV_BLOCKS) for group in config.kv_groups),
        vocab_size=config.vocab_size,
        decode_steps=_DECODE_STEPS,
    )


if __name__ == "__main__":
    again = [sys.executable, __file__]
    sys.exit(main(program_cases, again, description=__doc__ or "", record=RECORDS / "programs.json"))
