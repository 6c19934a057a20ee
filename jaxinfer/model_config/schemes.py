"""The schemes of a model whose checkpoint is quantised already: which modules become one weight, held how."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from jaxinfer.checkpoint.formats.declared import Declared
from jaxinfer.checkpoint.formats.format import TensorFormat
from jaxinfer.checkpoint.formats.modules import MOST_STEPS_OF_MODEL
from jaxinfer.errors import ModelError
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import LayerKind
from jaxinfer.model_config.tensor_names import TensorNames
from jaxinfer.quantization.scheme import LayerSchemes, Scheme, TableSchemes

_PARTS = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up"), "shared_gate_up": ("shared_gate", "shared_up")}
"""Modules of the weights that may be one tensor."""


def with_declared_schemes(config: DecoderConfig) -> DecoderConfig:
    """The decoder with the schemes that its checkpoint's weights have; as it is where that is a plain one.

    Raises ModelError, which names the modules, where some that are one weight here lie in different forms, and for
    patterns that might take long to match with the names of all.
    """
    if config.declared is None:
        return config
    roots = config.names.roots
    bodies, heads = (tuple(dict.fromkeys(values)) for values in zip(*roots, strict=True))
    declared = replace(config.declared, bodies=bodies, heads=heads)
    _check_steps(config, declared)
    layers = tuple(
        replace(kind, schemes=_layer_schemes(declared, config.names, kind, index, config.hidden_size))
        for index, kind in enumerate(config.layers)
    )
    head = None if config.tie_word_embeddings else declared.of_head()
    table = None if head is None else head.scheme(config.hidden_size)
    return replace(config, declared=declared, layers=layers, tables=TableSchemes(table=table))


def _check_steps(config: DecoderConfig, declared: Declared) -> None:
    kinds = Counter(config.layers)
    each = {kind: sum(map(len, _modules(config, kind))) for kind in kinds}
    names = len(declared.bodies) * sum(count * each[kind] for kind, count in kinds.items())
    if declared.steps * names > MOST_STEPS_OF_MODEL:
        raise ModelError(
            f"config.json: quantization_config: its patterns might take {declared.steps:,} steps to match with each of "
            f"{names:,} names of modules; at most {MOST_STEPS_OF_MODEL:,} are allowed together"
        )


def _modules(config: DecoderConfig, kind: LayerKind) -> list[tuple[str, ...]]:
    """Return the modules of all matrices of a layer."""
    weights = kind.depths(config.hidden_size)
    return [modules for weight in weights for modules in matrix_modules(config.names, kind, weight)]


def _layer_schemes(declared: Declared, names: TensorNames, kind: LayerKind, index: int, hidden: int) -> LayerSchemes:
    prefix = f"{names.layers}{index}."
    found: dict[str, Scheme | None] = {}
    for weight, depth in kind.depths(hidden).items():
        modules = [f"{prefix}{module}" for matrix in matrix_modules(names, kind, weight) for module in matrix]
        whole = weight in ("experts_gate_up", "experts_down") and getattr(names, weight) is not None
        form = _one_form(declared, modules, whole)
        found[weight] = None if form is None else form.scheme(depth)
    return LayerSchemes(**found)


def _one_form(declared: Declared, modules: list[str], whole: bool) -> TensorFormat | None:
    """The form of all modules of a weight. whole: one tensor holds all experts."""
    of = declared.of_experts if whole else declared.of_matrix
    first = of(modules[0])
    for module in modules[1:]:
        other = of(module)
        if other != first:
            raise ModelError(
                f"config.json: quantization_config: {modules[0]} is {_named(first)} and {module} is {_named(other)}; "
                "they are one weight here, and must be in one form"
            )
    return first


def _named(form: TensorFormat | None) -> str:
    return "not quantised" if form is None else repr(form)


def matrix_modules(names: TensorNames, kind: LayerKind, weight: str) -> list[tuple[str, ...]]:
    """The modules, by their names in a layer, whose rows make up the one matrix of a weight, or each expert's."""
    if weight in ("experts_gate_up", "experts_down"):
        return list(_expert_modules(names, kind, weight))
    parts = (weight,) if getattr(names, weight) is not None else _PARTS[weight]
    return [tuple(getattr(names, part) for part in parts)]


def _expert_modules(names: TensorNames, kind: LayerKind, weight: str) -> Iterator[tuple[str, ...]]:
    """One where it holds all experts."""
    fused, experts = getattr(names, weight), kind.experts
    assert experts is not None
    if fused is not None:
        yield (fused,)
        return
    each = (names.expert_gate, names.expert_up) if weight == "experts_gate_up" else (names.expert_down,)
    yield from (tuple(f"{names.experts}{expert}.{name}" for name in each) for expert in range(experts.count))
