"""A model folder opened to be read: where each weight of a decoder comes from, a checkpoint's tensors or leaves."""

import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxinfer.checkpoint.formats.parts.stored import TensorPart
from jaxinfer.checkpoint.leaves import Leaves, holds_leaves, part_of, read_key
from jaxinfer.checkpoint.safetensors import Checkpoint
from jaxinfer.checkpoint.sources import FLOATS, Element, Reader, Source, Tensor
from jaxinfer.layers.stack import Layout
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.models import weight
from jaxinfer.models.column_orders import with_one_order
from jaxinfer.models.held_weights import HeldWeights, canonical
from jaxinfer.models.huggingface import unused_tensors, weight_source, weight_sources
from jaxinfer.models.kv_scales import checkpoint_kv_scales, with_kv_scales
from jaxinfer.models.leaf_key import KV_SCALES, check_key, leaf_forms
from jaxinfer.models.plan import ModelPlan, plan_model
from jaxinfer.models.tied_head import with_own_head
from jaxinfer.models.weight import Sources, Weight, held_on
from jaxinfer.parallel.rules import ShardingRules
from jaxinfer.quantization.kv import ScaledKVCodes

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""progress(bytes done, bytes in all)."""


class OpenModel(Protocol):
    """Weights that can be read while the folder is open."""

    @property
    def config(self) -> DecoderConfig:
        """The decoder as the folder holds it."""
        ...

    @property
    def plan(self) -> ModelPlan:
        """Plan of the weights that `load` reads."""
        ...

    def part(self, plan: ModelPlan) -> "OpenModel":
        """Return the opened folder for a part of the decoder. plan: its layers are numbered as the folder's are."""
        ...

    @property
    def reader(self) -> Reader:
        """Reads the sources."""
        ...

    def sources(self, one: Weight) -> list[list[Source]]:
        """Return the sources of a weight's values, or of its leaves if the folder has those."""
        ...

    def leaf(self, name: str, layer: int | None, part: TensorPart) -> Source:
        """A part of one layer's weight, or of one outside of layers, by the name that it has in its module."""
        ...

    def kv_scales(self) -> tuple[ScaledKVCodes, list[Source]] | None:
        """The type that the folder's scales of keys and values are for, and those of each layer, [2]; None where it has
        none that keys and values could be kept with. Raises ModelError where a layer lacks them."""
        ...

    def bytes(self, mesh: Mesh) -> int:
        """Return the total bytes that `load` reports as progress."""
        ...

    def load(self, rules: ShardingRules, mesh: Mesh, progress: Progress | None) -> Iterator[jax.Array]:
        """All leaves, in the order of the plan's."""
        ...


@contextmanager
def open_model(
    folder: Path, config: DecoderConfig, dtype: jnp.dtype, layout: Layout = "unrolled"
) -> Iterator[OpenModel]:
    """A folder's weights for a decoder. Raises ModelError for what is missing, extra, wrong or another model's."""
    if holds_leaves(folder):
        yield _open_leaves(folder, config, dtype, layout)
        return
    with Checkpoint(folder) as checkpoint:
        config = _placed(config, checkpoint, dtype)
        opened = OpenCheckpoint(config, plan_model(config, dtype, layout), checkpoint)
        checkpoint.check(opened.tensors, unused_tensors(config))
        yield opened


def _open_leaves(folder: Path, config: DecoderConfig, dtype: jnp.dtype, layout: Layout) -> "OpenLeaves":
    own = canonical(config)
    check_key(folder, own, dtype, read_key(folder))
    leaves = Leaves(folder, leaf_forms(own, dtype))
    codes = config.layers[0].mixer.kv.codes
    if codes is not None and codes == config.held_kv_scales:
        config = replace(config, kv_scales=("k_scale", "v_scale"))
    return OpenLeaves(config, plan_model(config, dtype, layout), leaves, HeldWeights(config, dtype))


@dataclass(frozen=True)
class OpenLeaves:
    """A folder of leaves. Leaves that lie in it as devices take them are restored part by part."""

    config: DecoderConfig
    plan: ModelPlan
    reader: Leaves
    held: HeldWeights

    def part(self, plan: ModelPlan) -> "OpenLeaves":
        return replace(self, plan=plan)

    def sources(self, one: Weight) -> list[list[Source]]:
        return self.held.sources(one)

    def leaf(self, name: str, layer: int | None, part: TensorPart) -> Source:
        return self.held.source(name, layer, part)

    def kv_scales(self) -> tuple[ScaledKVCodes, list[Source]] | None:
        if self.config.held_kv_scales is None:
            return None
        scales = Tensor(KV_SCALES, (self.config.num_layers, 2))
        return self.config.held_kv_scales, [Element(scales, layer) for layer in range(self.config.num_layers)]

    def bytes(self, mesh: Mesh) -> int:
        return sum(one.bytes(held_on(mesh)) for one in (*self.plan.weights, *self.plan.head))

    def load(self, rules: ShardingRules, mesh: Mesh, progress: Progress | None) -> Iterator[jax.Array]:
        every = (*self.plan.weights, *self.plan.head)
        total, done = self.bytes(mesh), 0
        for _, group in itertools.groupby(every, lambda one: part_of(".".join(map(str, one.path)))):
            weights = list(group)
            yield from self._load_part(weights, rules, mesh)
            done += sum(one.bytes(held_on(mesh)) for one in weights)
            if progress is not None:
                progress(done, total)

    def _load_part(self, weights: Sequence[Weight], rules: ShardingRules, mesh: Mesh) -> Iterator[jax.Array]:
        whole = {one: self.held.whole(one, held_on(mesh)) for one in weights}
        wanted = {
            name: place
            for one, names in whole.items()
            if names is not None
            for name, place in zip(names, one.shardings(rules, mesh), strict=True)
        }
        restored = self.reader.restore(wanted) if wanted else {}
        for one, names in whole.items():
            if names is None:
                yield from weight.load(one, self.sources(one), self.reader, rules, mesh)
            else:
                yield from (restored[name] for name in names)


@dataclass(frozen=True)
class OpenCheckpoint:
    """A folder of safetensors."""

    config: DecoderConfig
    plan: ModelPlan
    reader: Checkpoint

    def part(self, plan: ModelPlan) -> "OpenCheckpoint":
        return replace(self, plan=plan)

    @property
    def tensors(self) -> Collection[Tensor]:
        """All that are read."""
        return _tensors(self.sources(one) for one in (*self.plan.weights, *self.plan.head))

    def sources(self, one: Weight) -> list[list[Source]]:
        if one.holds_slots:
            return [[one.slots()] * len(one.layers or ())]
        parts: Sequence[TensorPart] = ("weight",)
        if one.scheme is not None and self.config.checkpoint_forms:
            parts = one.scheme.parts
        return [weight_sources(self.config, one.path, one.layers, part) for part in parts]

    def leaf(self, name: str, layer: int | None, part: TensorPart) -> Source:
        return weight_source(self.config, name, layer, part)

    def kv_scales(self) -> tuple[ScaledKVCodes, list[Source]] | None:
        found = checkpoint_kv_scales(self.config, self.reader)
        for tensor in () if found is None else _tensors([[found[1]]]):
            self.reader.check_tensor(tensor)
        return found

    def bytes(self, mesh: Mesh) -> int:
        return self._size(self.sources(one) for one in (*self.plan.weights, *self.plan.head))

    def load(self, rules: ShardingRules, mesh: Mesh, progress: Progress | None) -> Iterator[jax.Array]:
        every = (*self.plan.weights, *self.plan.head)
        sources = [self.sources(one) for one in every]
        _warn_of_values(self.config, every, sources, self.reader, mesh)
        total, done = self._size(sources), 0

        def loaded(several: Sources) -> None:
            nonlocal done
            done += self._size([several])
            if progress is not None:
                progress(done, total)

        for one, several in zip(every, sources, strict=True):
            yield from weight.load(one, several, self.reader, rules, mesh, loaded)

    def _size(self, sources: Iterable[Sources]) -> int:
        return self.reader.size({tensor.name for tensor in _tensors(sources)})


def check_tensors(config: DecoderConfig, dtype: jnp.dtype, checkpoint: Checkpoint) -> None:
    """Raises ModelError where a checkpoint's tensors are not those of a model of `config`. Reads no weights but where a
    tied head might differ from the embedding, and numbers of groups."""
    config = _placed(config, checkpoint, dtype)
    opened = OpenCheckpoint(config, plan_model(config, dtype), checkpoint)
    checkpoint.check(opened.tensors, unused_tensors(config))


def _placed(config: DecoderConfig, checkpoint: Checkpoint, dtype: jnp.dtype) -> DecoderConfig:
    """The decoder with the names that this checkpoint's tensors have, with a head of its own if it holds one, and with
    the schemes that hold its columns."""
    names, declared = config.names.placed(checkpoint.names), config.declared
    if declared is not None:
        declared = declared.placed(checkpoint.names)
    config = with_kv_scales(replace(config, names=names, declared=declared), checkpoint)
    return with_one_order(with_own_head(config, checkpoint, dtype), checkpoint)


def _warn_of_values(
    config: DecoderConfig,
    every: Sequence[Weight],
    sources: Sequence[Sources],
    checkpoint: Checkpoint,
    mesh: Mesh,
) -> None:
    """Says what weights take that are quantised in the checkpoint and plain on the device, but for routers."""
    if config.declared is None:
        return
    held = read = 0
    for one, parts in zip(every, sources, strict=True):
        tensors = _tensors([parts])
        if one.scheme is None and "router" not in str(one.path[-1]) and any(t.dtypes != FLOATS for t in tensors):
            held += one.bytes(held_on(mesh))
            read += checkpoint.size({tensor.name for tensor in tensors})
    if held:
        message = "weights in %s take %s bytes in %s instead of %s: no scheme of the device holds them"
        log.warning(message, config.declared.forms, f"{held:,}", every[0].dtype, f"{read:,}")


def _tensors(sources: Iterable[Sources]) -> Collection[Tensor]:
    """Each once."""
    return dict.fromkeys(tensor for parts in sources for several in parts for one in several for tensor in one.tensors)
