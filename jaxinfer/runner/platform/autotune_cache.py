"""Measurements of earlier starts, in files beside the compile cache, so that the next start need not repeat them.

A measure holds as long as model, shapes, device, JAX and jaxinfer stay the same.
"""

import contextlib
import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.version import __version__


def shapes_digest(model: LoadedModel, shapes: EngineShapes, *parts: str) -> str:
    """16 hexadecimal digits. Block counts do not matter; parts: what else the measure depends on."""
    sizes = {**asdict(shapes), "groups": [group.window for group in shapes.groups]}
    mesh = (str(model.mesh.shape), repr(model.rules), model.mesh.devices.flat[0].device_kind)
    models = [part for one in model.drafting for part in _model_parts(one)]
    every = (*mesh, *models, repr(sizes), *parts)
    return hashlib.sha256("|".join((*every, jax.__version__, __version__)).encode()).hexdigest()[:16]


def _model_parts(model: LoadedModel) -> tuple[str, ...]:
    products = str(model.product_backends), model.plain_backend
    backends = (str(model.backends), model.experts_backend, model.dispatch_form, *products)
    return (repr(_structure(model)), str(model.dtype), *backends, model.layout)


def _structure(model: LoadedModel) -> object:
    """Return the model's structure; stages from the middle of a pipeline are alike if their layers are."""
    structure = model.structure
    if not isinstance(structure, DecoderConfig) or structure.span is None:
        return structure
    return replace(structure, span=None), structure.embeds, structure.ends


def read_note(file: Path | None, key: str) -> Any:
    """Read the value that a note has under `key`; None if there is none that can be read."""
    if file is None:
        return None
    try:
        return json.loads(file.read_text())[key]
    except (ValueError, KeyError, TypeError, OSError):
        return None


def write_note(file: Path | None, values: dict[str, Any]) -> None:
    """Writes a note; without effect where the folder takes none."""
    if file is not None:
        with contextlib.suppress(OSError):
            file.write_text(json.dumps(values, indent=1))
