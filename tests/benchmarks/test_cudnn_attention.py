"""The cuDNN yardstick: what is lowered for a GPU, and what is refused. Nothing runs: there is no library here."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.cudnn import fused_attention_stablehlo

from benchmarks.kernel_bench.cudnn_attention import cudnn_decode, cudnn_unavailable


def given(**change: Any) -> dict[str, Any]:
    arrays: dict[str, Any] = {
        "q": jax.ShapeDtypeStruct((4, 32, 128), jnp.bfloat16),
        "k_pages": jax.ShapeDtypeStruct((32, 64, 8, 128), jnp.bfloat16),
        "v_pages": jax.ShapeDtypeStruct((32, 64, 8, 128), jnp.bfloat16),
        "table": jax.ShapeDtypeStruct((4, 8), jnp.int32),
        "lengths": jax.ShapeDtypeStruct((4,), jnp.int32),
    }
    return {**arrays, **change}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91300)


@pytest.mark.usefixtures("library")
def test_it_lowers_to_one_call_that_reads_pages_as_they_lie():
    traced = jax.jit(partial(cudnn_decode, scale=0.1)).trace(**given())
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    (call,) = [line for line in text.splitlines() if "__cudnn$" in line]
    assert "fmhaSoftmax(" in call
    assert call.count("tensor<32x64x8x128xbf16>") == 2
    assert call.count("tensor<4x1x8x1xi32>") == 2
    assert r"is_paged_attention\22: true" in call


@pytest.mark.parametrize("found", ["no library", 90400])
def test_it_tells_why_it_cannot_run(found: Any, monkeypatch: pytest.MonkeyPatch):
    def version() -> int:
        if found == "no library":
            raise RuntimeError("cuDNN is not detected.")
        return found

    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", version)
    reason = cudnn_unavailable()
    assert reason in ("cuDNN is not installed: cuDNN is not detected.", "cuDNN must be 90500 (9.5) or newer, not 90400")
    with pytest.raises(RuntimeError, match="cuDNN"):
        jax.eval_shape(partial(cudnn_decode, scale=0.1), **given())


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("q", ((4, 32, 128), jnp.float32), r"q must be \[R, Hq, D\] of bfloat16 or float16, D a multiple of 8"),
        ("q", ((4, 12, 128), jnp.bfloat16), r"q must be \[R, a multiple of 8, 128\], not \(4, 12, 128\)"),
        ("k_pages", ((32, 64, 8, 128), jnp.int8), r"k_pages and v_pages must be .* of bfloat16, not .* of int8"),
        ("table", ((4, 7), jnp.int32), "k_pages must have as many pages as table has entries, 28, not 32"),
        ("table", ((3, 8), jnp.int32), r"table must be \[4, P\] of int32, not \(3, 8\)"),
        ("lengths", ((4,), jnp.float32), r"lengths must be \(4,\) of int32, not \(4,\) of float32"),
    ],
)
def test_what_cudnn_does_not_take_is_refused(name: str, array: tuple[Any, Any], message: str):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(partial(cudnn_decode, scale=0.1), **given(**{name: jax.ShapeDtypeStruct(*array)}))
