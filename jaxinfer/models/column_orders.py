"""The order in which the columns of a quantised weight lie: which tensors have it, and whether all its modules share
it. No jax."""

import logging
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from jaxinfer.checkpoint.formats.format import TensorFormat
from jaxinfer.checkpoint.formats.parts.groups import ColumnOrder, GroupNumbers
from jaxinfer.checkpoint.safetensors import Checkpoint
from jaxinfer.checkpoint.sources import Source, Stacked
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import LayerKind
from jaxinfer.model_config.schemes import matrix_modules
from jaxinfer.quantization.scheme import Scheme, TableSchemes

log = logging.getLogger(__name__)


def layer_order(config: DecoderConfig, layer: int, weight: str) -> Source:
    """Return the column order of a weight of LayerSchemes, [K] int32, or [E, K] of experts."""
    orders = [ColumnOrder(modules[0]) for modules in _layer_numbers(config, layer, weight)]
    return Stacked(orders) if weight in ("experts_gate_up", "experts_down") else orders[0]


def head_order(config: DecoderConfig) -> Source:
    """Return the column order of a head that is not the embedding, [hidden] int32."""
    return ColumnOrder(_head_numbers(config))


def with_one_order(config: DecoderConfig, checkpoint: Checkpoint) -> DecoderConfig:
    """The decoder with no schemes for the weights that no one order holds, whose values are read then; logs a warning
    that names the first. Experts have an order each. Schemes of weights whose columns lie in order have none.

    Raises ModelError that names file and tensor where one with numbers of groups is missing or wrong.
    """
    found = [_held(config, checkpoint, layer) for layer in range(config.num_layers)]
    layers = tuple(map(_with, config.layers, found))
    table, tables = config.tables.table, config.tables
    if table is not None and table.ordered:
        held = _Held.of(table, [[_head_numbers(config)]], checkpoint)
        tables, found = TableSchemes(tables.embed, held.scheme), [*found, {"table": held}]
    if every := [held.fault for weights in found for held in weights.values() if held.fault is not None]:
        log.warning("no one order of columns holds %d of the weights: %s", len(every), every[0])
    return replace(config, layers=layers, tables=tables)


class _Held(NamedTuple):
    """Scheme with which an ordered weight is held, or None and the fault for which it has no scheme."""

    scheme: Scheme | None
    fault: str | None = None

    @staticmethod
    def of(scheme: Scheme, matrices: list[list[GroupNumbers]], checkpoint: Checkpoint) -> "_Held":
        """matrices: the modules of each. Reads all numbers, so that each tensor is checked."""
        read = [[_read(module, checkpoint) for module in modules] for modules in matrices]
        if fault := next(filter(None, map(_fault, matrices, read)), None):
            return _Held(None, fault)
        in_order = all((one[0] == modules[0].as_they_lie).all() for modules, one in zip(matrices, read, strict=True))
        return _Held(replace(scheme, ordered=False) if in_order else scheme)


def _with(kind: LayerKind, weights: dict[str, _Held]) -> LayerKind:
    if not weights:
        return kind
    return replace(kind, schemes=kind.schemes._replace(**{name: held.scheme for name, held in weights.items()}))


def _held(config: DecoderConfig, checkpoint: Checkpoint, layer: int) -> dict[str, _Held]:
    """The weights of a layer whose schemes are ordered, by name."""
    schemes = config.layers[layer].schemes._asdict().items()
    return {
        name: _Held.of(scheme, _layer_numbers(config, layer, name), checkpoint)
        for name, scheme in schemes
        if scheme is not None and scheme.ordered
    }


def _fault(modules: list[GroupNumbers], read: list[np.ndarray]) -> str | None:
    """Why the modules of one matrix, whose numbers are read, have no order that sorts columns into groups of one
    length."""
    first, named = read[0], modules[0].tensor.name
    if (np.sort(first) != modules[0].as_they_lie).any():
        return f"in {named} groups differ in length"
    for numbers, other in zip(modules[1:], read[1:], strict=True):
        if (first != other).any():
            return f"{named} and {numbers.tensor.name} differ"
    return None


def _read(numbers: GroupNumbers, checkpoint: Checkpoint) -> np.ndarray:
    checkpoint.check_tensor(numbers.tensor)
    return checkpoint.read_source(numbers, (slice(None),))


def _layer_numbers(config: DecoderConfig, layer: int, weight: str) -> list[list[GroupNumbers]]:
    """Return the group numbers of each module of each matrix of a weight."""
    kind, names, declared = config.layers[layer], config.names, config.declared
    assert declared is not None
    prefix, depth = f"{names.layers}{layer}.", kind.depths(config.hidden_size)[weight]

    def numbers(module: str) -> GroupNumbers:
        form = declared.of_matrix(f"{prefix}{module}")
        return _numbers(form, names.of_body(f"{prefix}{module}"), depth)

    return [[numbers(module) for module in modules] for modules in matrix_modules(names, kind, weight)]


def _head_numbers(config: DecoderConfig) -> GroupNumbers:
    assert config.declared is not None
    return _numbers(config.declared.of_head(), config.names.head, config.hidden_size)


def _numbers(form: TensorFormat | None, module: str, depth: int) -> GroupNumbers:
    groups = form.groups(module, depth) if form is not None else None
    assert groups is not None
    return groups
