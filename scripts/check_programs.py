"""Compiles the engine's step programs for TPUs and GPUs on a machine that has none, and fails where one would copy KV
blocks or weights: `.venv/bin/python scripts/check_programs.py [--targets v6e,h200] [--all]`.

Programs are those of the engine's own `Programs`, over models without values. By default they have a layer of each kind
that a model has, or two, and some are not compiled for every kind of TPU; `--all` takes every layer, bucket and
program. Needs the extras compile-tpu and compile-gpu, as `python -m jaxinfer_kernels.check` does, whose table this
is.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import cycle, islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxinfer_kernels import KVLayout, unavailable
from jaxinfer_kernels.check.cases import Case, Kept, Lowering, array_bytes, kept_pages, kept_weights
from jaxinfer_kernels.check.command import RECORDS, main
from jaxinfer_kernels.check.table import size
from jaxinfer_kernels.check.targets import Target
from jaxinfer_kernels.gpu.attention_blocks import check_gpu_shapes
from jaxinfer_kernels.layouts import platform_layout

from jaxinfer.engine.step.buckets import make_buckets
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.model_config.decoder_config import DecoderConfig, LayerGroup
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import GroupBackend, abstract_model, plan_model
from jaxinfer.models.weight import Weight
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.quantization.kv import KV_CODES
from jaxinfer.runner.products import with_products
from jaxinfer.runner.program_table import Name
from jaxinfer.runner.programs import Programs

_DTYPE = jnp.dtype("bfloat16")
# Tokens are a multiple of 15 and blocks an odd count, so that no activation has the size of a weight or of the blocks.
_ROWS, _TOKENS, _LENGTH = 256, 1920, 8192
_BLOCK_SIZE = {"tpu": 128, "cuda": 64}  # as runner/platform.py has it
_KV_BLOCKS, _WINDOW_BLOCKS = 2049, 1025
_SMALL = 8
_FEW_LAYERS = 2
_DECODE_STEPS = 8
_BACKENDS = {"tpu": ("mosaic_tpu",), "cuda": ("mosaic_gpu", "xla")}
# Without a kernel of ours, programs differ little between TPUs; the largest takes minutes to compile.
_LEFT_OUT = {"v5e": ("admit", "sample", "mixed"), "v5p": ("admit", "sample", "mixed"), "v7x": ("admit", "sample")}
_FAMILY_TARGETS = ("v6e", "h200")
_QUANTISED_TARGETS = ("v5e", "v6e", "h200")
# NOTE: with int4 in groups of 32 the TPU's quantised_matmul spills on a v6e, at 430 of 1404 bundles.
_DECODE_ALONE = {"v6e": ("int4",)}
# Larger ones take minutes (gpt-oss, mixed 1920: almost five for a v6e). No activation has a weight's size.
_FAMILY_PROGRAMS: tuple[Name, ...] = (("decode", 16), ("mixed", 192))


class Model(NamedTuple):
    """A model by the fields of its config.json that programs follow from.

    quantization, kv_cache_dtype: how it holds its weights, and keys and values.
    """

    name: str
    fields: dict[str, Any]
    quantization: str = "none"
    kv_cache_dtype: str = "auto"

    def config(self, layers: int | None) -> DecoderConfig:
        """With so many layers, but one of every kind at least; None: all of them."""
        config = parse_config(_COMMON | self.fields)
        kinds = dict.fromkeys(config.layers)
        few = config.layers if layers is None else tuple(islice(cycle(kinds), max(layers, len(kinds))))
        return replace(config, layers=few).quantised(self.quantization).keeping(KV_CODES[self.kv_cache_dtype])

    @property
    def title(self) -> str:
        """What the table calls it."""
        weights = self.name if self.quantization == "none" else f"{self.name} in {self.quantization}"
        return weights if self.kv_cache_dtype == "auto" else f"{weights}, KV in {self.kv_cache_dtype}"


_COMMON = {
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}

DENSE = (
    Model(
        "Qwen3-0.6B",
        {
            "architectures": ["Qwen3ForCausalLM"],
            "vocab_size": 151936,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "tie_word_embeddings": True,
        },
    ),
    Model(
        "Llama-3.1-8B",
        {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
        },
    ),
    Model(
        "Qwen2.5-0.5B",
        {
            "architectures": ["Qwen2ForCausalLM"],
            "vocab_size": 151936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
    ),
)
GPT_OSS = Model(
    "gpt-oss-20b",
    {
        "architectures": ["GptOssForCausalLM"],
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "attention_bias": True,
        "swiglu_limit": 7.0,
        "rope_theta": 150000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "max_position_embeddings": 131072,
    },
)
QWEN3_MOE = Model(
    "Qwen3-30B-A3B",
    {
        "architectures": ["Qwen3MoeForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
    },
)
GEMMA3 = Model(
    "Gemma-3-4B",
    {
        "architectures": ["Gemma3ForCausalLM"],
        "vocab_size": 262208,
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    },
)
QUANTISED = (
    *(Model(DENSE[1].name, DENSE[1].fields, quantization) for quantization in ("int8", "fp8", "int4")),
    *(Model(DENSE[1].name, DENSE[1].fields, kv_cache_dtype=codes) for codes in ("fp8", "int8")),
    Model(QWEN3_MOE.name, QWEN3_MOE.fields, "int4"),
)
"""Codes of each type, with a scale for a row and for 32 values; of experts too."""
FITTING = {"v5e": QUANTISED[:2]}
"""Models of which a target holds all layers beside `FITTING_SEQUENCES` of `FITTING_LENGTH` tokens."""
FITTING_SEQUENCES, FITTING_LENGTH = 24, 2048
FAMILIES = (GPT_OSS, QWEN3_MOE, GEMMA3)
"""What differs from a dense model with one kind of layer: experts, windows, sinks, heads of 64 and of 256."""
EXPERTS = tuple(
    Model(f"Qwen3-30B-A3B with {experts} experts", QWEN3_MOE.fields | {"num_experts": experts}) for experts in (8, 128)
)
"""A token chooses as many of either: they differ in what is not chosen alone."""


def program_cases(target: Target, everything: bool) -> list[Case]:
    """Programs of every model, for one device of the target."""
    first, *others = (backend for backend in _BACKENDS[target.platform] if not unavailable(backend))
    if everything:
        models = (*DENSE, *FAMILIES, *QUANTISED)
        cases = [case for model in models for case in _model_cases(target, model, None, first, _every_name)]
    else:
        cases = _model_cases(target, DENSE[0], _FEW_LAYERS, first, partial(_some_names, target))
        # The second has larger weights. Its admit and sample follow slots and the vocabulary, as the first's do; its
        # mixed program takes minutes to compile for a TPU.
        cases += _model_cases(target, DENSE[1], _FEW_LAYERS, first, lambda shapes: _largest_forward(shapes)[:1])
    for model in EXPERTS:
        for backend in (first, *others):
            cases += _model_cases(target, model, 1, backend, lambda shapes: [("decode", make_buckets(shapes).rows[0])])
    for other in others:
        cases += _model_cases(target, DENSE[0], _FEW_LAYERS, other, _largest_forward)
    if not everything and target.name in _FAMILY_TARGETS:
        for model in FAMILIES:
            cases += _model_cases(target, model, 1, first, lambda _: _FAMILY_PROGRAMS)
    if not everything and target.name in _QUANTISED_TARGETS:
        cases += _quantised_cases(target, first)
    if target.name in FITTING:
        for model in FITTING[target.name]:
            cases += _model_cases(target, model, None, first, _largest_forward, fitting_shapes)
    return cases


def _quantised_cases(target: Target, backend: str) -> list[Case]:
    cases = []
    for model in QUANTISED:
        if model not in FITTING.get(target.name, ()):
            names = _FAMILY_PROGRAMS[: 1 if model.quantization in _DECODE_ALONE.get(target.name, ()) else None]
            cases += _model_cases(target, model, 1, backend, lambda _, names=names: names)
    return cases


def _model_cases(
    target: Target,
    model: Model,
    layers: int | None,
    backend: str,
    names: Callable[[EngineShapes], Sequence[Name]],
    shapes_of: Callable[[DecoderConfig, int], EngineShapes] | None = None,
) -> list[Case]:
    """shapes_of: of the model's config and a block's tokens; by default those of large steps."""
    config, block_size, layout = model.config(layers), _BLOCK_SIZE[target.platform], platform_layout(target.platform)
    plan, shapes = plan_model(config, _DTYPE), (shapes_of or _shapes)(config, block_size)
    backends = tuple(GroupBackend(_attends(config, group, backend, block_size), layout) for group in config.kv_groups)
    kv = [_blocks(group, pool, block_size, layout) for group, pool in zip(config.kv_groups, shapes.groups, strict=True)]
    kv_bytes = sum(array_bytes(blocks.shape, blocks.dtype) for blocks in kv)
    described = [leaf for weight in (*plan.weights, *plan.head) for leaf in _described(weight, target.platform)]
    needed = kv_bytes + sum(array_bytes(shape, kind) for _, shape, kind in described)
    taken = f", {shapes.max_num_seqs} x {shapes.max_model_len} tokens" if shapes_of else ""
    run_by = " and ".join(dict.fromkeys((backend, *(attends.name for attends in backends))))
    programs = cache(partial(_programs, config, shapes, backends, backend))
    return [
        Case(
            f"{name[0]} {name[1]}".removesuffix(" 0"),
            f"{model.title}, {config.num_layers} layers{taken}, {run_by}",
            partial(_lower, programs, name),
            (*_kept_groups(kv, layout), *kept_weights(described)),
            kv_bytes if name[0] in ("decode", "mixed", "multi_step") else 0,
            "" if needed < target.hbm_bytes else f"weights and KV blocks take {size(needed)}, more than a device has",
        )
        for name in names(shapes)
    ]


def _described(weight: Weight, platform: str) -> Iterator[tuple[str, tuple[int, ...], jnp.dtype]]:
    """Name, shape and type of each array that a weight is held in."""
    name = ".".join(map(str, weight.path))
    parts = ("",) if weight.scheme is None else (f" ({part})" for part in weight.scheme.parts)
    for part, leaf in zip(parts, weight.leaves(platform), strict=True):
        yield f"{name}{part}", leaf.shape, leaf.dtype


def _blocks(group: LayerGroup, pool: KVGroup, block_size: int, layout: KVLayout) -> jax.ShapeDtypeStruct:
    """The KV blocks of a group."""
    shape = layout.shape(
        layers=len(group.layers),
        pages=pool.num_blocks,
        page_size=block_size,
        kv_heads=group.kv.heads,
        key_dim=group.kv.key_dim,
        value_dim=group.kv.value_dim,
    )
    return jax.ShapeDtypeStruct(shape, _DTYPE if group.kv.codes is None else jnp.dtype(group.kv.codes))


def _attends(config: DecoderConfig, group: LayerGroup, backend: str, block_size: int) -> str:
    """What attends in a KV group: `backend`, or xla where that refuses its heads, as `choose_attention` passes over
    it."""
    if backend != "mosaic_gpu":
        return backend
    queries = max(config.layers[layer].attention.group_size for layer in group.layers)
    try:
        check_gpu_shapes(_DTYPE, _DTYPE, queries, group.kv.key_dim, group.kv.value_dim, block_size)
    except ValueError:
        return "xla"
    return backend


def _kept_groups(groups: Sequence[jax.ShapeDtypeStruct], layout: KVLayout) -> Iterator[Kept]:
    """The pages of every KV group, which have names where there are several."""
    for number, blocks in enumerate(groups):
        of_group = f" of group {number}" if len(groups) > 1 else ""
        for kept in kept_pages(blocks.shape, blocks.dtype, layout):
            yield kept._replace(name=f"{kept.name}{of_group}")


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
    config: DecoderConfig,
    shapes: EngineShapes,
    backends: tuple[GroupBackend, ...],
    experts_backend: str,
    devices: tuple[Any, ...],
) -> Programs:
    model = abstract_model(config, dtype=_DTYPE, mesh=make_mesh(devices=devices))
    model = replace(model, backends=backends, experts_backend=experts_backend)
    return Programs(with_products(model, experts_backend), shapes)


def _shapes(config: DecoderConfig, block_size: int) -> EngineShapes:
    return EngineShapes(
        max_num_seqs=_ROWS,
        max_num_batched_tokens=_TOKENS,
        max_scored=_ROWS,
        max_model_len=_LENGTH,
        block_size=block_size,
        groups=tuple(
            KVGroup(group.window, _KV_BLOCKS if group.window is None else _WINDOW_BLOCKS) for group in config.kv_groups
        ),
        vocab_size=config.vocab_size,
        decode_steps=_DECODE_STEPS,
    )


def fitting_shapes(config: DecoderConfig, block_size: int) -> EngineShapes:
    """As an engine has them that is asked for these sequences.

    It would take 2048 tokens a step, of which activations are as large as a weight's codes.
    """
    blocks = 1 + FITTING_SEQUENCES * (FITTING_LENGTH // block_size)
    return EngineShapes(
        max_num_seqs=FITTING_SEQUENCES,
        max_num_batched_tokens=_TOKENS,
        max_scored=FITTING_SEQUENCES + 64,
        max_model_len=FITTING_LENGTH,
        block_size=block_size,
        groups=tuple(KVGroup(group.window, blocks) for group in config.kv_groups),
        vocab_size=config.vocab_size,
    )


if __name__ == "__main__":
    again = [sys.executable, __file__]
    sys.exit(main(program_cases, again, description=__doc__ or "", record=RECORDS / "programs.json"))
