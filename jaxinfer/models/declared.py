"""Declarations of a model folder, and the architectures that would fit one that declares an unknown one."""

import logging
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from jaxinfer.checkpoint.leaves import holds_leaves, read_key
from jaxinfer.checkpoint.safetensors import Checkpoint
from jaxinfer.errors import ModelError, UnknownArchitectureError
from jaxinfer.folder_files import read_object
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.mlp_kind import ExpertsKind
from jaxinfer.model_config.model_files import ModelFiles, read_config, read_model_files
from jaxinfer.model_config.registry import (
    ARCHITECTURES,
    declared_architecture,
    find_architecture,
    known_architectures,
    parse_config,
)
from jaxinfer.models.leaf_key import held_config
from jaxinfer.models.opened import check_tensors

log = logging.getLogger(__name__)


def read_declared(folder: Path, architecture: str | None = None, ignored: Collection[str] = ()) -> ModelFiles:
    """The folder's files, its config.json read as that of `architecture` where one is given; of a folder of leaves the
    decoder that it holds.

    ignored: unknown keys of config.json that pass. Raises ModelError; for an architecture that is not known, with
    those whose fields and tensors fit. They are not taken: models that differ in their norms or activations may have
    the same fields and tensors.
    """
    if architecture is not None and architecture not in known_architectures():
        find_architecture(architecture)  # which raises
    try:
        files = read_model_files(folder, architecture, ignored)
    except UnknownArchitectureError as error:
        raise ModelError(f"{error}{_advice(folder)}") from None
    if holds_leaves(folder):
        files = replace(files, config=held_config(files.config, read_key(folder)))
    if architecture is not None and (said := _assumed(folder, architecture, files.config)):
        log.warning("%s", said)
    return files


def fitting(folder: Path) -> list[str]:
    """Names of the architectures whose fields and, where the folder has weights, whose tensors fit it."""
    raw = read_config(folder)
    return [name for name in ARCHITECTURES if _fits(folder, raw, name)]


def _fits(folder: Path, raw: dict[str, Any], name: str) -> bool:
    try:
        config = parse_config(raw, name, warns=False)
    except ModelError:
        return False
    if not any(folder.glob("*.safetensors")):
        return True
    try:
        with Checkpoint(folder) as checkpoint:
            check_tensors(config, jnp.dtype(jnp.float32), checkpoint)
    except ModelError:
        return False
    return True


def _advice(folder: Path) -> str:
    names = fitting(folder)
    if not names:
        return "; no architecture that is known has its fields and tensors"
    return (
        f". Its fields and tensors fit {', '.join(names)}, though it may compute something else: "
        f"--architecture {names[0]} loads it as such"
    )


def _assumed(folder: Path, architecture: str, config: DecoderConfig) -> str:
    """Describe in a sentence the assumptions about a model that names another architecture; empty if it names this
    one."""
    try:
        declared = declared_architecture(read_object(folder / "config.json"))
    except ModelError:
        declared = "no architecture"
    if declared == architecture:
        return ""
    return f"{folder}: names {declared} and is read as {architecture}: {_described(config)}"


def _described(config: DecoderConfig) -> str:
    layer = config.layers[0]
    attention, norm = layer.mixer, layer.norm
    weight = f"{norm.offset:g} + weight" if norm.offset else "weight"
    parts = [
        f"norms {layer.norms} attention and MLP ({norm.form}, {weight}, eps {norm.eps:g})",
        "attention and MLP side by side" if layer.parallel else "attention, then MLP",
        f"{'gated ' if isinstance(layer.mlp, ExpertsKind) or layer.mlp.gated else ''}{layer.mlp.activation}",
        "no rotary embedding" if attention.rope is None else f"{attention.rope.kind} rope, {attention.rope.theta:g}",
        f"windows in {sum(kind.mixer.window is not None for kind in config.layers)} of {config.num_layers} layers",
        f"embedding times {config.embedding_scale:g}",
        "tied head" if config.tie_word_embeddings else "a head of its own",
    ]
    return ", ".join(parts)
