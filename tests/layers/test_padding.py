"""What a CPU's products are given of padding: rows whose every bit is 0, which native kernels leave out."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxinfer.layers.context import LayerContext
from jaxinfer.layers.dispatch import Dispatch
from jaxinfer.layers.mlp import Mlp
from jaxinfer.layers.padding import without_padding
from jaxinfer.model_config.mlp_kind import MlpKind
from jaxinfer.quantization.scheme import LayerSchemes


def test_padding_is_zero_to_the_last_bit() -> None:
    x = jnp.array([[1.0, -2.0], [-0.0, 0.0], [jnp.nan, jnp.inf], [-0.0, -1.0]], jnp.float32)
    found = np.asarray(without_padding(x, jnp.array([True, True, False, False])))
    np.testing.assert_array_equal(found[:2], x[:2])
    assert found[2:].tobytes() == bytes(16)


@pytest.mark.parametrize("gated", [True, False])
def test_padding_is_zero_in_the_middle_of_an_mlp_with_biases(gated: bool) -> None:
    """Its second product, whose bias is not given here, then has nothing to compute."""
    mlp = Mlp(MlpKind(16, gated=gated, bias=True), LayerSchemes(), 4, jnp.dtype(jnp.float32))
    name = "gate_up" if gated else "up"
    for weight in (getattr(mlp, name), mlp.down):
        assert isinstance(weight, nnx.Param)
        weight.set_value(jnp.ones(weight.get_value().shape))
    bias = {f"{name}_bias": jnp.ones(getattr(mlp, name).get_value().shape[:-1])}
    x, real = jnp.zeros((3, 4)).at[0].set(1.0), jnp.array([True, False, False])
    context = LayerContext(bias, jnp.arange(3))
    found = np.asarray(mlp(x, context._replace(dispatch=Dispatch(real=real)))[0])
    assert not found[1:].any()
    np.testing.assert_array_equal(found[0], np.asarray(mlp(x, context)[0])[0])
    assert np.asarray(mlp(x, context)[0])[1:].all()
