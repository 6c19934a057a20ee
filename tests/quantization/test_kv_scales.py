"""Scales of keys and values: where checkpoints have them, and what is measured where they have none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from numpy_decoder import NumpyDecoder

from jaxinfer.errors import ModelError
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import LoadedModel, load_model
from jaxinfer.quantization.kv import ScaledKVCodes
from jaxinfer.runner.fit.kv_measure import needs_measuring, with_measured_scales
from tests.models.paged import ODD_CHUNKS, PagedModel, run_paged
from tests.quantization.checkpoints import write

LAYERS = 2
NAMES = {
    "llm-compressor": ("self_attn.k_scale", "self_attn.v_scale"),
    "modelopt": ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),
    "AutoFP8": ("self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"),
}
SCALES = np.array([[0.011, 0.02], [0.013, 0.017]], np.float32)


class RoundedKeys(NumpyDecoder):
    """Keeps keys and values in few bits; `scales`: [layers, 2]. Notes the largest of each layer."""

    codes: ScaledKVCodes
    scales: np.ndarray
    rounds = True

    def logits(self, token_ids: np.ndarray) -> np.ndarray:
        self.largest = np.zeros((LAYERS, 2))
        self.layer = -1
        return super().logits(token_ids)

    def qkv(self, prefix: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Keys turned already: `turn` leaves them then."""
        self.layer += 1
        q, k, v = super().qkv(prefix, x)
        # Wherever in a text, either of two channels that turn together may be as long as both.
        self.largest[self.layer] = np.hypot(*np.split(k, 2, axis=-1)).max(), np.abs(v).max()
        return super().turn(q), self.kept(0, super().turn(k)), self.kept(1, v)

    def turn(self, x: np.ndarray) -> np.ndarray:
        return x

    def kept(self, side: int, x: np.ndarray) -> np.ndarray:
        if not self.rounds:
            return x
        scaled = (x / self.scales[self.layer, side]).astype(np.float32)
        if self.codes == "int8":
            codes = np.clip(np.round(scaled), -128, 127)
        else:
            codes = np.clip(scaled, -448, 448).astype(ml_dtypes.float8_e4m3fn)
        return codes.astype(np.float64) * self.scales[self.layer, side]


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": LAYERS, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "vocab_size": 80, "max_position_embeddings": 64, "rms_norm_eps": 1e-5},
    "tie_word_embeddings": False,
}


def decoder_of(codes: ScaledKVCodes, scales: np.ndarray) -> RoundedKeys:
    rng = np.random.default_rng(5)
    shapes = RoundedKeys(CONFIG, {}).shapes()
    decoder = RoundedKeys(CONFIG, {name: rng.normal(0, 0.4, shape).astype("f4") for name, shape in shapes.items()})
    decoder.codes, decoder.scales = codes, scales
    return decoder


def scheme(**changes: Any) -> dict[str, Any]:
    """A quantization_config that quantises keys and values alone, as llm-compressor writes it."""
    kept = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False, **changes}
    return {"quant_method": "compressed-tensors", "format": "dense", "config_groups": {}, "kv_cache_scheme": kept}


def scale_tensors(names: tuple[str, str], scales: np.ndarray = SCALES) -> dict[str, np.ndarray]:
    return {
        f"model.layers.{layer}.{name}": scales[layer, side].reshape(1)
        for layer in range(LAYERS)
        for side, name in enumerate(names)
    }


def loaded(
    folder: Path, codes: ScaledKVCodes | None, scales: dict[str, np.ndarray], quantization: dict[str, Any] | None
) -> LoadedModel:
    tensors = {name: tensor.astype("f4") for name, tensor in decoder_of("int8", SCALES).tensors.items()}
    config = {**CONFIG, **({"quantization_config": quantization} if quantization else {})}
    write(folder, config, tensors | scales)
    return load_model(folder, parse_config(config).keeping(codes), dtype=jnp.dtype("float32"))


def scales_of(model: LoadedModel) -> np.ndarray:
    return np.asarray(model.build(model.weights).vectors.leaves["kv_scale"].get_value())


def assert_computes(model: LoadedModel, decoder: RoundedKeys) -> None:
    token_ids = np.random.default_rng(1).integers(0, 80, 40)
    wanted = decoder.logits(token_ids)
    assert wanted.std() > 0.1
    for found in run_paged(PagedModel(model), token_ids, ODD_CHUNKS):
        np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize(("codes", "kind"), [("float8_e4m3fn", "float"), ("int8", "int")])
def test_scales_of_a_checkpoint(tmp_path: Path, codes: ScaledKVCodes, kind: str, names: tuple[str, str]) -> None:
    model = loaded(tmp_path, codes, scale_tensors(names, 4 * SCALES), scheme(type=kind))
    np.testing.assert_array_equal(scales_of(model), 4 * SCALES)
    assert not needs_measuring(model)
    assert_computes(model, decoder_of(codes, 4 * SCALES))


def test_keys_far_into_a_text_are_held(tmp_path: Path) -> None:
    """Two equal channels that turn together lie in one after an eighth of a turn, which is 1.41 times as large then."""
    text = np.random.default_rng(2).integers(0, 80, 50)
    measured = with_measured_scales(loaded(tmp_path, "int8", {}, None), text.tolist())
    decoder = decoder_of("int8", SCALES)
    x = decoder.rms_norm("model.layers.0.input_layernorm", decoder.embed(text))
    first, second = np.split(NumpyDecoder.qkv(decoder, "model.layers.0.", x)[1], 2, axis=-1)
    angles = np.linspace(0, 2 * np.pi, 1000)[:, None, None, None]
    assert np.abs(first * np.cos(angles) - second * np.sin(angles)).max() < 127 * scales_of(measured)[0, 0]


@pytest.mark.parametrize("shape", [(), (1, 1), (1, 1, 1)])
def test_a_scale_may_have_axes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    tensors = {name: scale.reshape(shape) for name, scale in scale_tensors(NAMES["modelopt"]).items()}
    np.testing.assert_array_equal(scales_of(loaded(tmp_path, "float8_e4m3fn", tensors, scheme())), SCALES)


def test_a_layer_without_keys_and_tokens_that_are_not_the_models(tmp_path: Path) -> None:
    model = loaded(tmp_path, "int8", {}, None)
    with pytest.raises(ModelError, match="has no token of this model"):
        with_measured_scales(model, [80, 81])
    still = replace(model, weights=tuple(jnp.zeros_like(leaf) for leaf in model.weights))
    np.testing.assert_array_equal(scales_of(with_measured_scales(still, [1, 2, 99])), np.ones((LAYERS, 2)))
    broken = replace(model, weights=tuple(jnp.full_like(leaf, jnp.nan) for leaf in model.weights))
    with pytest.raises(ModelError, match="layer 0 are not finite"):
        with_measured_scales(broken, [1, 2])


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"quant_method": "fp8", "kv_cache_scheme": "static"}, "float8_e4m3fn"),
        ({"quant_method": "fp8", "kv_cache_scheme": "fp8"}, None),
        ({"quant_method": "fp8"}, "float8_e4m3fn"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "float8_e4m3fn"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}, None),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}}, None),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4"}}, "float8_e4m3fn"),
        (scheme(type=["float"]), None),
        (scheme(symmetric=False), None),
    ],
)
def test_what_scales_are_for(said: dict[str, Any], wanted: ScaledKVCodes | None) -> None:
    declared = parse_config({**CONFIG, "quantization_config": said}).declared
    assert declared is not None
    assert declared.kv_codes == wanted


def test_one_scale_for_keys_and_values(tmp_path: Path) -> None:
    tensors = scale_tensors(("self_attn.kv_scale", "self_attn.kv_scale"))
    model = loaded(tmp_path, "float8_e4m3fn", tensors, scheme())
    np.testing.assert_array_equal(scales_of(model), SCALES[:, [1, 1]])


@pytest.mark.long
def test_fp8_without_scales_has_scales_of_one(tmp_path: Path) -> None:
    model = loaded(tmp_path, "float8_e4m3fn", {}, None)
    np.testing.assert_array_equal(scales_of(model), np.ones((LAYERS, 2)))
    assert not needs_measuring(model)
    assert_computes(model, decoder_of("float8_e4m3fn", np.ones((LAYERS, 2))))


def test_scales_of_another_type_are_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = scale_tensors(NAMES["llm-compressor"])
    assert needs_measuring(loaded(tmp_path, "int8", tensors, scheme(type="float")))
    for other in (scheme(type="int"), scheme(num_bits=4), scheme(strategy="attn_head")):
        caplog.clear()
        model = loaded(tmp_path, "float8_e4m3fn", tensors, other)
        np.testing.assert_array_equal(scales_of(model), np.ones((LAYERS, 2)))
        assert "model.layers.0.self_attn.k_scale and scales like it are not used" in caplog.text


def test_scales_have_no_use_where_keys_are_as_they_are(tmp_path: Path) -> None:
    for said in (scheme(), None):
        model = loaded(tmp_path, None, scale_tensors(NAMES["llm-compressor"]), said)
        assert "kv_scale" not in model.build(model.weights).vectors.leaves


@pytest.mark.long
def test_scales_of_int8_are_measured(tmp_path: Path) -> None:
    model = loaded(tmp_path, "int8", {}, None)
    assert needs_measuring(model)
    text = np.random.default_rng(2).integers(0, 80, 50)
    measured = with_measured_scales(model, text.tolist())
    plain = decoder_of("int8", SCALES)
    plain.rounds = False
    plain.logits(text)
    np.testing.assert_allclose(scales_of(measured), 1.25 / 127 * plain.largest, rtol=1e-5)
    assert_computes(measured, decoder_of("int8", scales_of(measured)))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model.layers.1.self_attn.v_scale": None}, "tensor .*k_scale has no model.layers.1.self_attn.v_scale beside"),
        ({"model.layers.0.self_attn.k_scale": None}, "tensor .*v_scale has no model.layers.0.self_attn.k_scale beside"),
        (
            {f"model.layers.1.self_attn.{side}_scale": None for side in "kv"},
            "tensor model.layers.1.self_attn.k_scale is missing",
        ),
        ({"model.layers.0.self_attn.k_scale": np.array([np.nan], "f4")}, "k_scale has a scale that is not a finite"),
        ({"model.layers.0.self_attn.k_scale": np.array([0], "f4")}, "k_scale is a scale of 0; it must be above 0"),
        ({"model.layers.0.self_attn.k_scale": np.array([-1], "f4")}, "k_scale is a scale of -1; it must be above 0"),
        ({"model.layers.0.self_attn.k_scale": np.ones(2, "f4")}, r"has shape \[2\]; config.json asks for \[1\]"),
        ({"model.layers.0.self_attn.k_scale": np.ones(1, "i4")}, "k_scale is I32"),
    ],
)
def test_damaged_scales_are_refused(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    tensors = scale_tensors(NAMES["llm-compressor"]) | change
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    with pytest.raises(ModelError, match=told) as raised:
        loaded(tmp_path, "float8_e4m3fn", kept, scheme())
    assert str(tmp_path) in str(raised.value)
