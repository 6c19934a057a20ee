"""A conversion from beginning to end."""

import json
import logging
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp

from jaxinfer.checkpoint.formats.settings.unused import KV_SCALES
from jaxinfer.checkpoint.leaves import KEY
from jaxinfer.checkpoint.safetensors import INDEX, Checkpoint
from jaxinfer.convert.leaf_folder import add_leaves
from jaxinfer.convert.safetensors_folder import add_safetensors
from jaxinfer.convert.work_folder import WorkFolder
from jaxinfer.errors import JaxinferError, ParameterError
from jaxinfer.folder_files import UNFINISHED, check_file, read_object
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.models.leaf_key import FORMAT
from jaxinfer.models.opened import OpenModel, open_model
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig

log = logging.getLogger(__name__)

Form = Literal["orbax", "safetensors"]

_CONFIG = "config.json"
_WEIGHTS = (".safetensors",)
_COPIED = ("*.json", "*.jinja", "additional_chat_templates/*.jinja", "*.model", "merges.txt", "vocab.txt", "LICENSE*")
_LEFT = (_CONFIG, INDEX, KEY, UNFINISHED, "hf_quant_config.json")


@dataclass(frozen=True)
class Conversion:
    """A model to convert, and its target. dtype: of weights that are not quantised; None: safetensors as they are.
    mesh: the chunks of leaves are cut for its shards."""

    folder: Path
    out: Path
    to: Form
    dtype: str | None
    quantization: str = "none"
    mesh: MeshConfig = ONE_DEVICE


def convert(asked: Conversion, config: DecoderConfig) -> None:
    """Makes the folder `out`, or goes on where a killed run has stopped.

    config: that of the folder, over no mesh. Raises JaxinferError, which says what is wrong and what is allowed.
    """
    _check_folders(asked)
    config = config.quantised(asked.quantization)
    try:
        with WorkFolder(asked.out, _described(asked, config)) as work:
            if not work.renamed:
                _add_all(work, asked, config)
            work.finish()
    except OSError as error:
        message = f"{asked.out}: cannot be written: {error.strerror or error}"
        raise JaxinferError(f"{message}; the same command goes on where this one stopped") from error


def _check_folders(asked: Conversion) -> None:
    folder, out = asked.folder.resolve(), asked.out.resolve()
    if out == folder or folder.is_relative_to(out) or out.is_relative_to(folder):
        message = f"{asked.out} is the model's folder {asked.folder}, or in it, or around it; give another"
        raise ParameterError("out", message)
    if asked.to == "safetensors" and asked.mesh != ONE_DEVICE:
        raise ParameterError("mesh", "is for --to orbax: safetensors are the same for all meshes")


def _described(asked: Conversion, config: DecoderConfig) -> dict[str, Any]:
    """Describe everything that the result depends on: files by size and time, and the decoder, since flags may change
    how it is read."""
    copied = set(_files_to_copy(asked.folder))
    read = {path for path in asked.folder.iterdir() if path.is_file() and path.suffix in (*_WEIGHTS, ".json")}
    files = {
        path.relative_to(asked.folder).as_posix(): [path.stat().st_size, path.stat().st_mtime_ns]
        for path in sorted(copied | read)
    }
    mesh = {"axes": dict(asked.mesh.axes), "rules": asdict(asked.mesh.rules)}
    return {
        "format": FORMAT,
        "model": files,
        **{"to": asked.to, "dtype": asked.dtype, "quantization": asked.quantization, "mesh": mesh},
        "decoder": _decoder(config),
    }


def _decoder(config: DecoderConfig) -> dict[str, Any]:
    """All of its fields, each kind of layer once."""
    kinds = list(dict.fromkeys(config.layers))
    order = [kinds.index(kind) for kind in config.layers]
    return {**asdict(replace(config, layers=tuple(kinds))), "order": order}


def _add_all(work: WorkFolder, asked: Conversion, config: DecoderConfig) -> None:
    """config.json comes last."""
    dtype = jnp.dtype(asked.dtype or config.held_dtype or "float32")
    with open_model(asked.folder, config, dtype) as opened:
        fields = _add_weights(work, asked, opened, dtype)
    for path in _files_to_copy(asked.folder):
        check_file(path)
        work.add(path.relative_to(asked.folder).as_posix(), lambda to, path=path: _copy(path, to))
    raw = read_object(asked.folder / _CONFIG)
    gone = {name for name, value in fields.items() if value is None}
    text = json.dumps({name: value for name, value in {**raw, **fields}.items() if name not in gone}, indent=2) + "\n"
    work.add(_CONFIG, lambda path: _write(path, text))


def _add_weights(work: WorkFolder, asked: Conversion, opened: OpenModel, dtype: jnp.dtype) -> dict[str, Any]:
    """The fields of config.json that change; a None goes."""
    _check_kv_scales(opened, asked.to)
    if asked.to == "safetensors":
        return add_safetensors(work, opened, asked.dtype)
    held = opened.config.checkpoint_forms or asked.quantization
    add_leaves(work, opened, dtype, held, asked.mesh)
    return {}


def _check_kv_scales(opened: OpenModel, to: Form) -> None:
    """Warns of scales that are not written. Raises ParameterError where safetensors would have none, though others may
    need them."""
    if not isinstance(opened.reader, Checkpoint):
        return
    scales = opened.kv_scales()
    read = {tensor.name for one in (() if scales is None else scales[1]) for tensor in one.tensors}
    left = sorted(name for name in opened.reader.names if name.endswith(KV_SCALES) and name not in read)
    if left and scales is None and to == "safetensors":
        message = "is not one number a layer for fp8 or int8, as kv_cache_scheme could say; remove such tensors first"
        raise ParameterError("to", f"safetensors: {left[0]} {message}")
    if left:
        log.warning("%s and scales like it are left out: they are not used here", left[0])


def _files_to_copy(folder: Path) -> Iterator[Path]:
    found = {path.relative_to(folder).as_posix(): path for pattern in _COPIED for path in folder.glob(pattern)}
    yield from (path for name, path in sorted(found.items()) if name not in _LEFT)


def _copy(path: Path, to: Path) -> None:
    shutil.copyfile(path, to)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
