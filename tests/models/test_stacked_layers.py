"""Stacked layers whose matrices kernels multiply: the kernels read each where it lies, on one device and on several."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.layers.stack import Layout
from jaxinfer.model_config.mlp_kind import ExpertsKind, MlpKind, RouterKind
from jaxinfer.models.loaded import LoadedModel, random_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.runner.kernel_backends import kernel_interpreter
from jaxinfer.runner.products import with_products
from tests.model_config.uniform import uniform_decoder
from tests.runner.devices import run_on_devices

from .dense import CONFIG, TOKENS, dense_logits

_FEW = TOKENS[:6]
_ATTENTION = replace(CONFIG.layers[0].attention, num_heads=8)
MLPS = {
    "dense": MlpKind(256),
    "experts": MlpKind(128, experts=ExpertsKind(8, 2, 128, RouterKind(normalise=True), shared=128)),
}


def made(mlp: str, quantization: str, layout: Layout, backend: str, mesh: MeshConfig = ONE_DEVICE) -> LoadedModel:
    """Three layers of random weights, the same in every layout."""
    decoder = uniform_decoder(
        _ATTENTION, MLPS[mlp], windows=(None,) * 3, vocab_size=256, hidden_size=128, max_position_embeddings=64
    )
    config = decoder.quantised(quantization).over(*mesh.parts)
    model = random_model(
        config, dtype=jnp.dtype("float32"), seed=5, layout=layout, mesh=make_mesh(mesh), rules=mesh.rules
    )
    model = replace(model, experts_backend=backend)
    return model if backend == "xla" else with_products(model, backend)


def check(mlp: str, quantization: str, mesh: MeshConfig = ONE_DEVICE) -> None:
    """Logits of stacked layers by the TPU's kernels, beside those of unrolled ones by plain JAX on one device."""
    wanted = dense_logits(made(mlp, quantization, "unrolled", "xla"), _FEW)
    stacked = made(mlp, quantization, "stacked", "mosaic_tpu", mesh)
    with kernel_interpreter(stacked):
        found = dense_logits(stacked, _FEW)
    np.testing.assert_allclose(found, wanted, atol=2e-4 * np.abs(wanted).max())


@pytest.mark.long
@pytest.mark.parametrize(("mlp", "quantization"), [("dense", "int8"), ("dense", "int4"), ("experts", "none")])
def test_kernels_read_a_layer_in_its_stack(mlp: str, quantization: str) -> None:
    check(mlp, quantization)


@pytest.mark.long
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_plain_products_of_stacked_layers(quantization: str) -> None:
    """Without a kernel, a layer is sliced out."""
    unrolled, stacked = (made("experts", quantization, layout, "xla") for layout in ("unrolled", "stacked"))
    np.testing.assert_allclose(dense_logits(stacked, _FEW), dense_logits(unrolled, _FEW), atol=1e-4)


ON_DEVICES = """
from jaxinfer.parallel.mesh_config import MeshConfig
from tests.models.test_stacked_layers import check

check("dense", "int8", MeshConfig({"tensor": 2}))
check("experts", "none", MeshConfig({"tensor": 2}))
check("experts", "int4", MeshConfig({"expert": 2}))
"""


@pytest.mark.long
def test_kernels_read_their_part_on_each_device() -> None:
    run_on_devices(ON_DEVICES, 2)
