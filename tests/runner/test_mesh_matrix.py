"""Small models over meshes in various circumstances: a mesh a model here, all of them by `tests.runner.mesh_matrix`."""

import pytest

from tests.runner.devices import run_on_devices
from tests.runner.mesh_matrix import MODELS, main

MESH = {"one KV head": "data2-tp4", "experts": "ep8"}


@pytest.mark.long
@pytest.mark.parametrize("model", MESH)
def test_a_mesh_gives_what_one_device_gives(model: str):
    assert model in MODELS
    run_on_devices(main, 8, model, MESH[model])
