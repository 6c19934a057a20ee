"""The files of a folder of safetensors, made from a model that is open; one tensor at a time is in memory."""

import json
import math
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.checkpoint.safetensors import INDEX, SINGLE, TYPES, Checkpoint
from jaxinfer.checkpoint.sources import Source
from jaxinfer.convert.compressed import Parts, Spec, check_scheme, every_module_below, quantization_config, specs
from jaxinfer.convert.work_folder import WorkFolder, check_room
from jaxinfer.errors import ParameterError
from jaxinfer.model_config.tensor_names import TensorNames
from jaxinfer.models.held_weights import canonical, weight_name
from jaxinfer.models.hub_tensors import HubTensor, hub_tensors
from jaxinfer.models.opened import OpenModel
from jaxinfer.models.plan import ModelPlan
from jaxinfer.quantization.array import quantise
from jaxinfer.quantization.scheme import Scheme

MOST_BYTES = 5 * 10**9
"""Most bytes of a file, as on the Hub; a larger tensor has a file to itself."""
Types = dict[tuple[str, int | None], jnp.dtype]
"""Types of each weight's values, by its name and layer."""
_KV_SCALES = ("k_scale", "v_scale")
_NAMES = {dtype.name: name for name, dtype in TYPES.items()}


class OutTensor(NamedTuple):
    """A tensor that will be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]

    @property
    def bytes(self) -> int:
        """Bytes in its file."""
        return math.prod(self.shape) * TYPES[self.dtype].itemsize


def add_safetensors(work: WorkFolder, opened: OpenModel, dtype: str | None) -> dict[str, Any]:
    """Adds all tensors by the Hub's names, and an index where there is more than one file.

    dtype: of tensors that are not quantised, in which the model is open; None: as they are. Returns the fields that
    config.json must have, None for those that it must not. Raises ParameterError for a model that is not written so,
    and OSError.
    """
    config = canonical(opened.config)
    hub = list(hub_tensors(config, opened.leaf))
    quantised = {tensor.module: tensor.scheme for tensor in hub if tensor.scheme is not None}
    _check(opened, quantised)
    types = _types(opened.plan)
    read = lru_cache(maxsize=1)(partial(_parts, opened, types))  # of one matrix at a time, for all that is made of it
    tensors: list[OutTensor] = []
    for tensor in hub:
        if tensor.scheme is None:
            tensors.append(_plain(opened, tensor, types[tensor.weight, tensor.layer], dtype))
        else:
            tensors += _quantised(tensor, tensor.scheme, read)
    others = _others(opened, {tensor.name for tensor in tensors})
    scales = opened.kv_scales()
    kept = [] if scales is None else _kv_scales(opened, scales[1])
    _add_files(work, [*tensors, *kept, *others])
    fields: dict[str, Any] = {"quantization_config": None}
    if quantised or scales is not None:
        plain = {tensor.module for tensor in hub if tensor.is_matrix and tensor.scheme is None}
        ignored = _ignored(config.names, plain, others) if quantised else []
        kv_codes = None if scales is None else scales[0]
        fields["quantization_config"] = quantization_config(quantised, ignored, kv_codes)
    if dtype is not None:
        fields |= {"dtype": dtype, "torch_dtype": dtype}
    return fields if config.tie_word_embeddings else fields | {"tie_word_embeddings": False}


def _check(opened: OpenModel, quantised: dict[str, Scheme]) -> None:
    names = opened.config.names
    if quantised and (names.columns_first or names.experts_gate_up is not None):
        what = "fused experts" if names.experts_gate_up is not None else "matrices that lie by columns"
        raise ParameterError("to", f"safetensors: {what} are not written as compressed-tensors; orbax holds them")
    for module, scheme in quantised.items():
        check_scheme(scheme, module)


def _types(plan: ModelPlan) -> Types:
    return {
        (weight_name(one), layer): one.dtype for one in (*plan.weights, *plan.head) for layer in one.layers or (None,)
    }


def _quantised(tensor: HubTensor, scheme: Scheme, read: Callable[[HubTensor], Parts]) -> list[OutTensor]:
    rows, depth = tensor.values.shape

    def out(spec: Spec) -> OutTensor:
        return OutTensor(f"{tensor.module}.{spec.end}", spec.dtype, spec.shape, lambda: spec.made(read(tensor)))

    return [out(spec) for spec in specs(scheme, rows, depth)]


def _plain(opened: OpenModel, tensor: HubTensor, held: jnp.dtype, asked: str | None) -> OutTensor:
    """held: the type that the leaf has; one that is kept as float32 stays so."""
    dtype, values = held, tensor.values
    if asked is None and isinstance(opened.reader, Checkpoint):
        dtype = opened.reader.float_type(tensor.name) or held

    def make() -> np.ndarray:
        return opened.reader.read_source(values, (slice(None),) * len(values.shape)).astype(dtype)

    return OutTensor(tensor.name, _NAMES[dtype.name], values.shape, make)


def _parts(opened: OpenModel, types: Types, tensor: HubTensor) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales of a matrix: the folder's, or made of its values."""
    every = (slice(None),) * 2
    if opened.config.checkpoint_forms:
        codes, scales = (opened.reader.read_source(tensor.part(part), every) for part in ("codes", "scales"))
        return codes, scales.astype(np.float32)
    assert tensor.scheme is not None
    values = opened.reader.read_source(tensor.values, every).astype(types[tensor.weight, tensor.layer])
    with jax.default_device(jax.devices("cpu")[0]):
        codes, scales = jax.jit(quantise, static_argnums=1)(values, tensor.scheme)
    return np.asarray(codes).astype(np.int8 if tensor.scheme.codes == "int4" else codes.dtype), np.asarray(scales)


def _others(opened: OpenModel, known: set[str]) -> list[OutTensor]:
    """Return tensors that no leaf holds but other engines need: towers of a model that sees or hears."""
    if not isinstance(opened.reader, Checkpoint):
        return []
    reader = opened.reader

    def other(name: str) -> OutTensor:
        info = reader.info(name)
        return OutTensor(name, info.dtype, info.shape, lambda: reader.read(name, ()))

    return [other(name) for name in reader.beginning(opened.config.names.skipped) if name not in known]


def _kv_scales(opened: OpenModel, scales: Sequence[Source]) -> list[OutTensor]:
    """Return the scales of each layer's keys and values, by their names in compressed-tensors."""
    names = opened.config.names
    module = names.out.rpartition(".")[0]

    def out(layer: int, side: int, of: Source) -> OutTensor:
        name = names.of_body(f"{names.layers}{layer}.{module}.{_KV_SCALES[side]}")
        every = (slice(None),)
        return OutTensor(
            name, "F32", (1,), lambda: opened.reader.read_source(of, every).astype(np.float32)[side : side + 1]
        )

    return [out(layer, side, of) for layer, of in enumerate(scales) for side in range(len(_KV_SCALES))]


def _ignored(names: TensorNames, plain: set[str], others: Sequence[OutTensor]) -> list[str]:
    """Modules that compressed-tensors must not look for scales of: plain matrices, a tied head, and towers."""
    heads = {names.head, names.head.rpartition(".")[2]}  # loaders leave out what is before it
    below = {
        every_module_below(begin) for begin in names.skipped if any(tensor.name.startswith(begin) for tensor in others)
    }
    return [*sorted(plain | heads), *sorted(below)]


def _add_files(work: WorkFolder, tensors: Sequence[OutTensor]) -> None:
    from huggingface_hub import split_state_dict_into_shards_factory

    by_name = {tensor.name: tensor for tensor in tensors}
    check_room(work, sum(tensor.bytes for tensor in tensors))
    split = split_state_dict_into_shards_factory(
        by_name,  # pyright: ignore[reportArgumentType]
        get_storage_size=lambda tensor: tensor.bytes,
        get_storage_id=lambda tensor: None,
        filename_pattern=SINGLE.replace(".", "{suffix}."),
        max_shard_size=MOST_BYTES,
    )
    for file, names in split.filename_to_tensors.items():
        work.add(file, lambda path, names=names: write_file(path, [by_name[name] for name in names]))
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        work.add(INDEX, lambda path: _write_json(path, index))


def write_file(path: Path, tensors: Sequence[OutTensor]) -> None:
    """One file of safetensors, tensor by tensor; the package's own writer wants all of them in memory."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in tensors:
        offsets = [at, at + tensor.bytes]
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        at += tensor.bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            made = np.ascontiguousarray(tensor.make())
            assert (made.shape, made.dtype) == (tensor.shape, TYPES[tensor.dtype])
            stream.write(made.reshape(-1).view(np.uint8).data)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
