"""Models whose weights two devices share beside one device."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.errors import ParameterError
from jaxinfer.layers.stack import Layout
from jaxinfer.models import weight
from jaxinfer.models.loaded import random_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.rules import ShardingRules
from tests.models.dense import CONFIG, TOKENS, dense_logits
from tests.models.goldens import GOLDENS, load

LAYOUTS: tuple[Layout, ...] = ("unrolled", "stacked")


def compare() -> None:
    mesh = make_mesh(MeshConfig({"tensor": 2}))
    assert dict(mesh.shape) == {"data": 1, "stage": 1, "expert": 1, "tensor": 2}
    for layout in LAYOUTS:
        one = random_model(CONFIG, dtype=jnp.dtype("float32"), layout=layout)
        two = random_model(CONFIG, dtype=jnp.dtype("float32"), layout=layout, mesh=mesh)
        np.testing.assert_allclose(dense_logits(two, TOKENS), dense_logits(one, TOKENS), atol=1e-4)
        split = [leaf.addressable_shards[0].data.size * 2 == leaf.size for leaf in two.weights]
        assert sum(split) > len(split) / 2, split
        assert two.kv_sharding(0, 8, 4).shard_shape(two.kv_shape(0, 8, 4)) == (2, 2, 8, 4, 1, 16)
    weight._LARGE = 0  # of stacks a layer at a time
    for family in ("llama2", "qwen2"):
        for layout in LAYOUTS:
            whole, parts = (load(GOLDENS / family, mesh=m, layout=layout) for m in (None, mesh))
            for a, b in zip((*whole.weights, *whole.head), (*parts.weights, *parts.head), strict=True):
                np.testing.assert_array_equal(a, b)
    with pytest.raises(ParameterError, match="kv_heads, 1, cannot be split over tensor=2"):
        load(GOLDENS / "mistral", mesh=mesh)
    load(GOLDENS / "mistral", mesh=mesh, rules=ShardingRules(kv_heads=()))
