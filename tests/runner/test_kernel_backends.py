"""Which backends a device may run, by its platform, its number and the model's type."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxinfer.errors import ParameterError
from jaxinfer.runner.tuning import kernel_backends
from jaxinfer.runner.tuning.kernel_backends import candidates, check_asked, obstacle

ONE, TWO = (Mesh(np.array([jax.devices("cpu")[0]] * count), ("tensor",)) for count in (1, 2))


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """The native kernels count as built."""
    monkeypatch.setattr(kernel_backends, "unavailable", lambda _: None)


@pytest.mark.parametrize(
    ("mesh", "dtype", "able"),
    [
        (ONE, "float32", ("native",)),
        (ONE, "bfloat16", ("native",)),
        (ONE, "float16", ("xla",)),
        (TWO, "float32", ("xla",)),
    ],
)
def test_a_cpu_has_one_candidate(mesh: Mesh, dtype: str, able: tuple[str, ...]) -> None:
    assert candidates(mesh, jnp.dtype(dtype)) == able


def test_a_cpu_without_the_library_has_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_backends, "unavailable", lambda backend: f"{backend} was not built")
    assert candidates(ONE, jnp.dtype("float32")) == ("xla",)
    assert obstacle("native", ONE) == "native was not built"


@pytest.mark.parametrize(("platform", "able"), [("gpu", ("xla", "mosaic_gpu")), ("tpu", ("xla", "mosaic_tpu"))])
def test_other_platforms_time_theirs(platform: str, able: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_backends, "platform_of", lambda _: platform)
    assert candidates(ONE, jnp.dtype("float32")) == candidates(TWO, jnp.dtype("float16")) == able
    assert obstacle("native", ONE) == f"native does not run on {platform}: {' or '.join(able)} does"


@pytest.mark.parametrize(("asked", "mesh"), [("native", ONE), ("xla", ONE), ("xla", TWO), ("auto", TWO)])
def test_what_a_cpu_runs_may_be_asked_for(asked: Any, mesh: Mesh) -> None:
    check_asked(asked, mesh)


def test_native_over_several_devices_is_refused() -> None:
    with pytest.raises(ParameterError, match="attention_backend: native runs on one device, and this mesh has 2"):
        check_asked("native", TWO)
