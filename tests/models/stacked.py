"""Models of three layers that are alike, in either layout."""

from dataclasses import replace

import jax.numpy as jnp

from jaxinfer.layers.stack import Layout
from jaxinfer.model_config.mlp_kind import ExpertsKind, MlpKind, RouterKind
from jaxinfer.models.loaded import LoadedModel, random_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.runner.tuning.products import with_products
from tests.model_config.uniform import uniform_decoder

from .dense import CONFIG

_ATTENTION = replace(CONFIG.layers[0].mixer, num_heads=8)
MLPS = {
    "dense": MlpKind(256),
    "experts": ExpertsKind(8, 2, 128, RouterKind(normalise=True), shared=128),
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
