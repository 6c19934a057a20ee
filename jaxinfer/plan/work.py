"""Work of one device of a mesh in a step: operations, bytes of its memory, and exchanges with others.

Products with weights, attention, and the bytes of weights, keys and values are counted: a step's activations are small
beside them. Padding of a step to the next size of a program is not counted.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax.numpy as jnp

from jaxinfer.model_config.decoder_config import DecoderConfig, LayerGroup
from jaxinfer.model_config.eagle3 import Eagle3Config
from jaxinfer.model_config.layer_kind import LayerKind
from jaxinfer.models.eagle3 import plan_eagle3
from jaxinfer.models.weight import Weight
from jaxinfer.parallel.mesh import shard_shape
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.plan.exchange import Exchange
from jaxinfer.quantization.array import four_bits, part_form, stored_bytes
from jaxinfer.runner.fit.device_weights import device_bytes, placed_plan
from jaxinfer.runner.fit.inspection import kv_token_bytes

_PRODUCTS = {"int8": "int8", "e4m3": "float8"}
"""Types that products are computed in, by what a scheme rounds activations to; of others, that of activations."""


class MeasuredCall(NamedTuple):
    """A computation that may have been measured: `count` times the value of a table of `chip.TABLES` at a point."""

    table: str
    at: tuple[float, ...]
    count: int = 1


class StepPart(NamedTuple):
    """Part of a step, bound by its operations or by its bytes. kind: the type of products' operands. calls: its
    computations, if any that may have been measured."""

    name: str
    ops: float
    bytes: float
    kind: str
    calls: tuple[MeasuredCall, ...] = ()


class DeviceStep(NamedTuple):
    """Parts follow one another, and so do exchanges."""

    parts: tuple[StepPart, ...]
    exchanges: tuple[Exchange, ...]


class ShardRows(NamedTuple):
    """Rows of one shard of a step. tokens: of each; before: tokens of each that are in KV already; scored: positions of
    each."""

    count: int
    tokens: int
    before: int
    scored: int = 1


@dataclass(frozen=True)
class DeviceModel:
    """A model, or a stage of one, as one device of a mesh has it.

    config: over the mesh's parts. mesh: of a stage its devices. weights: all but experts, tables and the head. head:
    numbers and bytes, 0 where the stage has none. tables: bytes of an embedding that is no head, of which a step reads
    a row a token. experts: of layers whose experts are alike.
    kv_bytes: of a token, an entry a KV group. pair_ops: of one query and one key in all layers, an entry a KV group.
    sums: how often a step's layers add hidden states up along some axes of the mesh. row: bytes of each array that
    devices send of a row of the embedding, codes and scales apart.
    """

    config: DecoderConfig
    mesh: MeshConfig
    dtype: jnp.dtype
    weights: tuple["DeviceWeights", ...]
    head: tuple[int, int]
    tables: int
    experts: tuple["DeviceExperts", ...]
    kv_bytes: tuple[int, ...]
    pair_ops: tuple[float, ...]
    sums: tuple[tuple[tuple[str, ...], int], ...]
    row: tuple[int, ...]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights that the device holds."""
        return (
            sum(one.bytes for one in self.weights)
            + self.head[1]
            + self.tables
            + sum(one.layers * one.slots * one.bytes for one in self.experts)
        )


class DeviceWeights(NamedTuple):
    """Weights whose products are of one type. matrices: of those that are held plain, each size of the device's part of
    a layer's matrix, and how many there are: (inputs, outputs, count)."""

    kind: str
    numbers: int
    bytes: int
    matrices: tuple[tuple[int, int, int], ...]


class DeviceExperts(NamedTuple):
    """Experts of `layers` layers. count: of the model's in a layer, of which a token chooses `chosen`. slots: that a
    device has of them and of their copies. numbers, bytes: of its part of one expert."""

    layers: int
    count: int
    chosen: int
    slots: int
    numbers: int
    bytes: int
    kind: str


def device_model(config: DecoderConfig, dtype: jnp.dtype, platform: str, mesh: MeshConfig) -> DeviceModel:
    """config: of the model, over no mesh. platform: `tpu`, `gpu`, `cpu`. mesh: of one stage. Raises ParameterError
    where the model cannot be split so."""
    return placed_model(config.over(*mesh.parts), dtype, platform, mesh)


def placed_model(config: DecoderConfig, dtype: jnp.dtype, platform: str, mesh: MeshConfig) -> DeviceModel:
    """Describe a model, or a stage of one, on one device. config: over the mesh's parts."""
    plan = placed_plan(config, dtype, platform, mesh)
    return _of_weights(config, plan.weights, plan.head, dtype, platform, mesh)


def device_head(config: Eagle3Config, dtype: jnp.dtype, platform: str, mesh: MeshConfig) -> DeviceModel:
    """Describe an EAGLE-3 head on one device, without the embedding that it may share with its target. Its tables
    include the target's column of each row of its output matrix, int32."""
    config = config.over(*mesh.parts)
    plan = plan_eagle3(config, dtype)
    found = _of_weights(config.decoder, plan.weights, (plan.table,), dtype, platform, mesh)
    return replace(found, tables=found.tables + 4 * plan.table.shape[0])


def _of_weights(
    config: DecoderConfig,
    of_layers: Sequence[Weight],
    of_head: Sequence[Weight],
    dtype: jnp.dtype,
    platform: str,
    mesh: MeshConfig,
) -> DeviceModel:
    """of_head: those of an output matrix that is no embedding too; none where there is none."""
    weights: dict[tuple[str, bool], list[Weight]] = {}
    tables: list[Weight] = []
    experts: dict[LayerKind, list[Weight]] = {}
    for one in (*of_layers, *of_head):
        if one.path[-1] in ("embed", "positions") or one in of_head:
            tables.append(one)
        elif "expert" in one.axes:
            assert one.layers is not None
            experts.setdefault(config.layers[one.layers[0]], []).append(one)
        else:
            weights.setdefault((_kind(one, dtype), one.scheme is None), []).append(one)
    held = {one.path: device_bytes(one, platform, mesh) for one in tables}
    scored = of_head or [one for one in tables if config.ends and one.path[-1] == "embed"]
    head = sum(_numbers(one, mesh) for one in scored), sum(held.pop(one.path) for one in scored)
    return DeviceModel(
        config,
        mesh,
        dtype,
        tuple(_device_weights(kind, plain, of, platform, mesh) for (kind, plain), of in weights.items()),
        head,
        sum(held.values()),
        tuple(_device_experts(config, dtype, kind, of, platform, mesh) for kind, of in experts.items()),
        kv_token_bytes(config, dtype, platform, mesh),
        tuple(_pair_ops(config, mesh, group) for group in config.kv_groups),
        tuple(_sums(config, mesh).items()),
        _row(config, dtype, platform, mesh),
    )


def _kind(one: Weight, dtype: jnp.dtype) -> str:
    return dtype.name if one.scheme is None else _PRODUCTS.get(one.scheme.activations, dtype.name)


def _numbers(one: Weight, mesh: MeshConfig) -> int:
    return math.prod(shard_shape(mesh, one.axes, one.shape))


def _device_weights(kind: str, plain: bool, of: list[Weight], platform: str, mesh: MeshConfig) -> DeviceWeights:
    numbers, size = sum(_numbers(one, mesh) for one in of), sum(device_bytes(one, platform, mesh) for one in of)
    matrices: Counter[tuple[int, int]] = Counter()
    for one in of:
        if plain and one.layers is not None and one.path[0] == "blocks":
            shape, count = shard_shape(mesh, one.axes, one.shape), len(one.layers)
            matrices[shape[-1], math.prod(shape[:-1]) // count] += count
    return DeviceWeights(kind, numbers, size, tuple((*sizes, count) for sizes, count in matrices.items()))


def _device_experts(
    config: DecoderConfig, dtype: jnp.dtype, kind: LayerKind, weights: list[Weight], platform: str, mesh: MeshConfig
) -> DeviceExperts:
    experts = kind.experts
    assert experts is not None
    layers, slots = config.layers.count(kind), experts.slots // mesh.shards("expert")
    numbers = sum(_numbers(one, mesh) for one in weights) // layers // slots
    size = sum(device_bytes(one, platform, mesh) for one in weights) // layers // slots
    return DeviceExperts(layers, experts.count, experts.chosen, slots, numbers, size, _kind(weights[0], dtype))


def step_of(model: DeviceModel, rows: Sequence[ShardRows], imbalance: float = 1.0) -> DeviceStep:
    """rows: of one shard, all in one step. imbalance: tokens of the busiest device's experts over the mean; without
    effect where each device has a part of every expert."""
    rows = [each for each in rows if each.count]
    return DeviceStep(tuple(_parts(model, rows, imbalance)), tuple(_exchanges(model, rows)))


def _parts(model: DeviceModel, rows: Sequence[ShardRows], imbalance: float) -> Iterator[StepPart]:
    tokens, scored = sum(each.count * each.tokens for each in rows), sum(each.count * each.scored for each in rows)
    for each in model.weights:
        calls = (_product(each.kind, tokens, *sizes) for sizes in each.matrices)
        yield StepPart("weights", 2.0 * tokens * each.numbers, each.bytes, each.kind, tuple(calls))
    width, layers = model.config.hidden_size, len(model.config.layers)
    yield StepPart("between products", 0.0, 0.0, model.dtype.name, (MeasuredCall("layer", (tokens, width), layers),))
    devices = model.mesh.shards("expert")
    busy = min(imbalance, devices)
    for one in model.experts:
        products = tokens * one.chosen / devices * busy
        # Of those that a token chooses, some device has its share at least, and whole ones.
        least = -(-one.chosen // devices)
        touched = max(least, one.slots * (1 - (1 - one.chosen / one.count) ** (tokens * busy)))
        yield StepPart("experts", one.layers * 2.0 * products * one.numbers, one.layers * touched * one.bytes, one.kind)
    if scored and model.config.ends:
        numbers, size = model.head
        kind, plain = model.dtype.name, model.config.head_scheme is None
        calls = (_product(kind, scored, width, numbers // width, 1),) if plain else ()
        yield StepPart("head", 2.0 * scored * numbers, size, kind, calls)
        yield StepPart("sampling", 0.0, 0.0, kind, (MeasuredCall("sampling", (scored, numbers // width)),))
    for decoding in (True, False):
        if some := [each for each in rows if (each.tokens == 1) == decoding]:
            yield _attention(model, some, decoding)


def _product(kind: str, rows: float, inputs: int, outputs: int, count: int) -> MeasuredCall:
    return MeasuredCall(f"products.{kind}", (rows, inputs, outputs), count)


def _attention(model: DeviceModel, rows: Sequence[ShardRows], decoding: bool) -> StepPart:
    """decoding: each row has one token."""
    ops = size = 0.0
    calls: list[MeasuredCall] = []
    for group, token, pair in zip(model.config.kv_groups, model.kv_bytes, model.pair_ops, strict=True):
        layers = len(group.layers)
        for each in rows:
            pairs, keys = _seen(each, group.window)
            ops += each.count * pairs * pair
            size += each.count * token * (keys + each.tokens)
            if decoding and group.kv.codes is None:
                calls.append(MeasuredCall("attention", (each.count, keys, token / layers), layers))
    return StepPart("keys and values", ops, size, model.dtype.name, tuple(calls))


def _pair_ops(config: DecoderConfig, mesh: MeshConfig, group: LayerGroup) -> float:
    """Return the operations for a query and a key in a group's layers: the score, and its share of the output."""
    heads = sum(config.layers[layer].mixer.num_heads for layer in group.layers)
    return 2.0 * heads / mesh.shards("kv_heads") * (group.kv.key_dim + group.kv.value_dim)


def _seen(rows: ShardRows, window: int | None) -> tuple[float, int]:
    """Count, for one row, the pairs of a query and a key that it sees, and the keys that any of its queries sees."""
    first, last = rows.before + 1, rows.before + rows.tokens
    if window is None:
        return (first + last) * rows.tokens / 2, last
    whole = max(0, last - max(first, window) + 1)  # queries that see a whole window
    part = rows.tokens - whole
    return whole * window + (first + first + part - 1) * part / 2, min(last, window - 1 + rows.tokens)


def _sums(config: DecoderConfig, mesh: MeshConfig) -> Counter[tuple[str, ...]]:
    counts: Counter[tuple[str, ...]] = Counter()
    for layer in config.layers:
        counts[_axes(mesh, "kv_heads")] += 1
        counts[_axes(mesh, *(("mlp",) if layer.experts is None else ("expert", "expert_mlp")))] += 1
    counts.pop((), None)
    return counts


def _row(config: DecoderConfig, dtype: jnp.dtype, platform: str, mesh: MeshConfig) -> tuple[int, ...]:
    scheme, shape = config.tables.embed, (1, config.hidden_size)
    if scheme is None:
        return (stored_bytes(shape, dtype),)
    forms = (part_form(scheme, part, shape, four_bits(platform, mesh.size)) for part in scheme.parts)
    return tuple(stored_bytes(form.shape, form.dtype) for form in forms)


def _exchanges(model: DeviceModel, rows: Sequence[ShardRows]) -> Iterator[Exchange]:
    tokens = sum(each.count * each.tokens for each in rows)
    counts: Counter[tuple[int, tuple[str, ...]]] = Counter()
    if model.config.embeds and (vocabulary := _axes(model.mesh, "vocab")):
        for each in model.row:
            counts[tokens * each, vocabulary] += 1
    for axes, count in model.sums:
        counts[tokens * model.config.hidden_size * model.dtype.itemsize, axes] += count
    for (size, axes), count in counts.items():
        yield Exchange("all-reduce", size, axes, count)


def _axes(mesh: MeshConfig, *logical: str) -> tuple[str, ...]:
    """Return the axes of the mesh along which there are several devices, for these logical axes."""
    found = [name for axis in logical for name in mesh.rules.split(axis) or () if mesh.axes.get(name, 1) > 1]
    return tuple(dict.fromkeys(found))
