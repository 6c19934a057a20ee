"""A key for what was measured once: it holds as long as model, shapes, device, JAX and jaxinfer stay the same."""

import hashlib
from dataclasses import asdict

import jax

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.version import __version__


def shapes_digest(model: LoadedModel, shapes: EngineShapes, *parts: str) -> str:
    """16 hexadecimal digits. Block counts do not matter; parts: what else the measure depends on."""
    sizes = {**asdict(shapes), "groups": [group.window for group in shapes.groups]}
    mesh = (str(model.mesh.shape), model.mesh.devices.flat[0].device_kind, str(model.kv_layout))
    every = (repr(model.config), str(model.dtype), *mesh, repr(sizes), *parts, jax.__version__, __version__)
    return hashlib.sha256("|".join(every).encode()).hexdigest()[:16]
