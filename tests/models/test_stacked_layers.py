"""Stacked layers whose matrices kernels multiply: the kernels read each where it lies, on one device and on several."""

import numpy as np
import pytest

from jaxinfer.layers.dispatch import Dispatch
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.runner.tuning.kernel_backends import kernel_interpreter
from tests.runner.devices import run_on_devices

from .dense import TOKENS, dense_logits
from .stacked import made

_FEW = TOKENS[:6]


def check(mlp: str, quantization: str, mesh: MeshConfig = ONE_DEVICE) -> None:
    """Logits of stacked layers by the TPU's kernels, beside those of unrolled ones by plain JAX on one device.

    On several devices experts are multiplied by `xla`.
    """
    wanted = dense_logits(made(mlp, quantization, "unrolled", "xla"), _FEW)
    stacked = made(mlp, quantization, "stacked", "mosaic_tpu", mesh)
    dispatch = stacked.dispatch() if mesh is ONE_DEVICE else Dispatch()
    with kernel_interpreter(stacked):
        found = dense_logits(stacked, _FEW, dispatch)
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


def check_devices() -> None:
    check("dense", "int8", MeshConfig({"tensor": 2}))
    check("experts", "none", MeshConfig({"tensor": 2}))
    check("experts", "int4", MeshConfig({"expert": 2}))


@pytest.mark.long
def test_kernels_read_their_part_on_each_device() -> None:
    run_on_devices(check_devices, 2)
