"""Models converted for a test, and loaded."""

import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file

from jaxinfer.checkpoint.safetensors import SINGLE
from jaxinfer.convert.conversion import Conversion, Form, convert
from jaxinfer.models.declared import read_declared
from jaxinfer.models.loaded import LoadedModel, load_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from tests.models.goldens import GOLDENS


def converted(
    folder: Path,
    out: Path,
    to: Form,
    *,
    dtype: str | None = "float32",
    quantization: str = "none",
    mesh: MeshConfig = ONE_DEVICE,
) -> Path:
    convert(Conversion(folder, out, to, dtype, quantization, mesh), read_declared(folder).config)
    return out


def loaded(
    folder: Path, quantization: str = "none", mesh: MeshConfig = ONE_DEVICE, dtype: str = "float32"
) -> LoadedModel:
    """As an engine over this mesh loads it."""
    config = read_declared(folder).config.quantised(quantization)
    config = config.over(*mesh.parts)
    return load_model(folder, config, dtype=jnp.dtype(dtype), mesh=make_mesh(mesh), rules=mesh.rules)


def assert_equal_leaves(got: LoadedModel, wanted: LoadedModel) -> None:
    """Bit for bit, of the same type and in the same places."""
    assert len(got.weights) == len(wanted.weights)
    for one, other in zip((*got.weights, *got.head), (*wanted.weights, *wanted.head), strict=True):
        assert (one.dtype, one.sharding) == (other.dtype, other.sharding)
        np.testing.assert_array_equal(_bits(one), _bits(other))


def _bits(array) -> np.ndarray:
    host = np.asarray(array)
    return host.view(f"u{host.dtype.itemsize}")


def family(name: str, folder: Path) -> Path:
    """A copy of a golden model's folder, but for its golden."""
    shutil.copytree(GOLDENS / name, folder, ignore=shutil.ignore_patterns("golden.npz"))
    return folder


def with_kv_scales(folder: Path, names: tuple[str, str], scheme: dict | None = None) -> Path:
    """The golden of Llama 2 with scales of keys and values. scheme: `kv_cache_scheme`."""
    family("llama2", folder)
    scales = {
        f"model.layers.{layer}.{name}": np.array([0.25 + layer + side], np.float32)
        for layer in range(read_declared(folder).config.num_layers)
        for side, name in enumerate(names)
    }
    save_file({**load_file(folder / SINGLE), **scales}, folder / SINGLE)
    if scheme is not None:
        path = folder / "config.json"
        quantization = {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": scheme}
        path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": quantization}))
    return folder
