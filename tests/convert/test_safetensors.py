"""Folders of safetensors: the Hub's tensors, bit for bit, and quantised ones that are read as what they were."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from jaxinfer.checkpoint.safetensors import INDEX, SINGLE
from jaxinfer.convert import safetensors_folder
from jaxinfer.convert.conversion import Form
from jaxinfer.errors import ModelError, ParameterError
from jaxinfer.models.declared import read_declared
from jaxinfer.models.loaded import LoadedModel, load_model
from jaxinfer.quantization.kv import KVCodes
from tests.convert.conversions import assert_equal_leaves, converted, family, loaded, with_kv_scales
from tests.models.goldens import FAMILIES, GOLDENS
from tests.quantization.checkpoints import LLAMA, MOE, made
from tests.quantization.forms import FORMS

WRITTEN = ["qwen2", "qwen3_moe", "gemma3", "phi3", "internlm2"]
"""Biases; experts; a tied head; one tensor for q, k and v; rows by head."""


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    files = folder.glob("*.safetensors")
    return {name: array for file in files for name, array in load_file(file).items()}


def assert_same_tensors(got: Path, wanted: Path, dtype: str | None = None) -> None:
    """Bit for bit. dtype: that the known ones have become."""
    found, known = tensors_of(got), tensors_of(wanted)
    known = {name: array.astype(dtype or array.dtype) for name, array in known.items()}
    assert found.keys() == known.keys()
    for name, array in known.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_copy_has_the_same_tensors(name: str, tmp_path: Path) -> None:
    """Also what only others read: towers of models that see."""
    source = GOLDENS / name
    out = converted(source, tmp_path / "out", "safetensors", dtype=None)
    assert_same_tensors(out, source)
    given, written = (json.loads((folder / "config.json").read_text()) for folder in (source, out))
    assert {**given, "tie_word_embeddings": written.get("tie_word_embeddings")} == {
        "tie_word_embeddings": None,
        **written,
    }


@pytest.mark.few(6)
@pytest.mark.parametrize("name", [*WRITTEN, "gpt_oss", "gpt2", "olmo2", "deepseek_moe", "granite_moe", "cohere"])
def test_leaves_become_the_tensors_that_they_were_made_of(name: str, tmp_path: Path) -> None:
    leaves = converted(GOLDENS / name, tmp_path / "leaves", "orbax")
    assert_same_tensors(converted(leaves, tmp_path / "out", "safetensors", dtype=None), GOLDENS / name, "float32")


def assert_equal_layers(got: LoadedModel, wanted: LoadedModel) -> None:
    """Bit for bit, but for embedding and head, which are not quantised in safetensors."""
    plain = ("embed", "table")
    for one, other in zip(_layers(got), _layers(wanted), strict=True):
        assert (one[0], one[1].dtype) == (other[0], other[1].dtype)
        assert one[0] not in plain
        np.testing.assert_array_equal(one[1], other[1], err_msg=one[0])


def _layers(model: LoadedModel):
    from jaxinfer.models.leaf_key import leaf_names
    from jaxinfer.models.plan import plan_model

    plan = plan_model(model.config, model.dtype)
    names = [name for one in plan.weights for name in leaf_names(one)]
    return [(name, np.asarray(leaf)) for name, leaf in zip(names, model.weights, strict=True) if "embed" not in name]


@pytest.mark.few(2)
@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8", "int8-w8a8"])
@pytest.mark.parametrize("name", WRITTEN)
def test_quantised_layers_are_read_as_an_engine_makes_them(name: str, quantization: str, tmp_path: Path) -> None:
    wanted = loaded(GOLDENS / name, quantization)
    out = converted(GOLDENS / name, tmp_path / "out", "safetensors", dtype=None, quantization=quantization)
    assert_equal_layers(loaded(out), wanted)
    leaves = converted(GOLDENS / name, tmp_path / "leaves", "orbax", quantization=quantization)
    again = converted(leaves, tmp_path / "again", "safetensors", dtype=None)
    assert_equal_layers(loaded(again), wanted)


@pytest.mark.parametrize("config", [LLAMA, MOE], ids=["dense", "experts"])
def test_int4_in_groups(config: dict, tmp_path: Path) -> None:
    """Sizes that groups of 32 divide, and a layer's matrix that they do not: it is int8."""
    size = "moe_intermediate_size" if "num_experts" in config else "intermediate_size"
    sizes = {**config, size: 208, "torch_dtype": "float32"}
    source = made(sizes, {}, FORMS["fp8-rows"][1], left=("lm_head", "gate")).write_plain(tmp_path / "source")
    out = converted(source, tmp_path / "out", "safetensors", dtype=None, quantization="int4")
    groups = json.loads((out / "config.json").read_text())["quantization_config"]["config_groups"]
    assert [group["weights"]["num_bits"] for group in groups.values()] == [4, 8]
    assert_equal_layers(loaded(out), loaded(source, "int4"))


@pytest.mark.parametrize("form", ["w8a8", "fp8-rows"])
def test_a_quantised_checkpoint_stays_as_it_is(form: str, tmp_path: Path) -> None:
    quantization, writer = FORMS[form]
    source = made(LLAMA, quantization, writer).write(tmp_path / "source")
    assert_equal_leaves(loaded(converted(source, tmp_path / "out", "safetensors", dtype=None)), loaded(source))


@pytest.mark.parametrize("form", ["awq", "gptq-order", "mxfp4", "nvfp4", "fp8-blocks"])
def test_other_forms_are_refused_by_name(form: str, tmp_path: Path) -> None:
    quantization, writer = FORMS[form]
    source = made(LLAMA, quantization, writer).write(tmp_path / "source")
    with pytest.raises(ParameterError, match="which is not written as compressed-tensors; int8, int4 and fp8"):
        converted(source, tmp_path / "out", "safetensors", dtype=None)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "told"), [("gpt_oss", "fused experts"), ("gpt2", "lie by columns")])
def test_families_that_compressed_tensors_does_not_know(name: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=told):
        converted(GOLDENS / name, tmp_path / "out", "safetensors", dtype=None, quantization="int8")


def test_many_files_and_their_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_folder, "MOST_BYTES", 20_000)
    out = converted(GOLDENS / "qwen2", tmp_path / "out", "safetensors", dtype=None)
    files = sorted(path.name for path in out.glob("*.safetensors"))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    index = json.loads((out / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in tensors_of(out).values())
    assert_same_tensors(out, GOLDENS / "qwen2")
    assert_equal_leaves(loaded(out), loaded(GOLDENS / "qwen2"))


def test_another_type(tmp_path: Path) -> None:
    out = converted(GOLDENS / "glm4_moe", tmp_path / "out", "safetensors", dtype="bfloat16")
    with safe_open(out / "model.safetensors", framework="numpy") as file:
        types = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    assert {kind for name, kind in types.items() if not name.endswith("correction_bias")} == {"BF16"}
    assert {kind for name, kind in types.items() if name.endswith("correction_bias")} == {"F32"}
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_head_that_differs_from_its_tie_is_written(tmp_path: Path) -> None:
    source = family("llama3", tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] = 2 * tensors["model.embed_tokens.weight"]
    save_file(tensors, source / "model.safetensors")
    for to in ("orbax", "safetensors"):
        out = converted(source, tmp_path / to, to, dtype="float32")
        assert_equal_leaves(loaded(out), loaded(source))
    assert json.loads((tmp_path / "safetensors" / "config.json").read_text())["tie_word_embeddings"] is False


KV_NAMES = {
    "llm-compressor": ("self_attn.k_scale", "self_attn.v_scale"),
    "modelopt": ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),
    "AutoFP8": ("self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"),
    "one for both": ("self_attn.kv_scale",) * 2,
}


def kv_scales(folder: Path, codes: KVCodes) -> np.ndarray:
    """As an engine that keeps keys and values in `codes` reads them."""
    model = load_model(folder, read_declared(folder).config.keeping(codes), dtype=np.dtype("float32"))
    assert model.config.kv_scales is not None
    return np.asarray(model.build(model.weights).vectors.leaves["kv_scale"].get_value())


@pytest.mark.few(3)
@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize(("codes", "kind"), [("float8_e4m3fn", "float"), ("int8", "int")])
@pytest.mark.parametrize("names", KV_NAMES.values(), ids=KV_NAMES)
def test_scales_of_keys_and_values(
    names: tuple[str, str], codes: KVCodes, kind: str, quantization: str, tmp_path: Path
) -> None:
    scheme = {"num_bits": 8, "type": kind, "symmetric": True, "strategy": "tensor", "dynamic": False}
    source = with_kv_scales(tmp_path / "source", names, scheme)
    out = converted(source, tmp_path / "out", "safetensors", dtype=None, quantization=quantization)
    leaves = converted(source, tmp_path / "leaves", "orbax", quantization=quantization)
    again = converted(leaves, tmp_path / "again", "safetensors", dtype=None)
    for folder in (out, again):
        assert tensors_of(folder)["model.layers.0.self_attn.v_scale"].shape == (1,)
        written = json.loads((folder / "config.json").read_text())["quantization_config"]["kv_cache_scheme"]
        assert scheme.items() <= written.items()
        np.testing.assert_array_equal(kv_scales(folder, codes), kv_scales(source, codes))
    assert_equal_layers(loaded(out), loaded(source, quantization))


def test_scales_of_a_plain_checkpoint_are_for_fp8(tmp_path: Path) -> None:
    source = with_kv_scales(tmp_path / "source", KV_NAMES["llm-compressor"])
    out = converted(source, tmp_path / "out", "safetensors", dtype=None)
    assert_same_tensors(out, source)
    np.testing.assert_array_equal(kv_scales(out, "float8_e4m3fn"), kv_scales(source, "float8_e4m3fn"))
    assert_equal_leaves(loaded(out), loaded(source))


def test_scales_that_are_not_one_number_a_layer_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scheme = {"num_bits": 8, "type": "float", "strategy": "attn_head"}
    source = with_kv_scales(tmp_path / "source", KV_NAMES["llm-compressor"], scheme)
    with pytest.raises(ParameterError, match=r"to: safetensors: model.layers.0.self_attn.k_scale is not one number"):
        converted(source, tmp_path / "out", "safetensors", dtype=None)
    converted(source, tmp_path / "leaves", "orbax")
    assert "model.layers.0.self_attn.k_scale and scales like it are left out" in caplog.text


@pytest.mark.parametrize("to", ["safetensors", "orbax"])
@pytest.mark.parametrize(
    ("gone", "told"),
    [
        (("k_scale",), "v_scale has no model.layers.1.self_attn.k_scale beside it"),
        (("k_scale", "v_scale"), "tensor model.layers.1.self_attn.k_scale is missing"),
    ],
)
def test_a_layer_without_scales_is_refused(to: Form, gone: tuple[str, ...], told: str, tmp_path: Path) -> None:
    source = with_kv_scales(tmp_path / "source", KV_NAMES["llm-compressor"])
    left = {f"model.layers.1.self_attn.{name}" for name in gone}
    save_file({name: one for name, one in load_file(source / SINGLE).items() if name not in left}, source / SINGLE)
    with pytest.raises(ModelError, match=told):
        converted(source, tmp_path / "out", to)


@pytest.mark.parametrize("name", ["gemma3_vision", "llava", "mistral3_vision"])
def test_towers_are_ignored(name: str, tmp_path: Path) -> None:
    """By the names that they have in the file, and by those of models in transformers, which begin otherwise; no matrix
    of the decoder is."""
    out = converted(GOLDENS / name, tmp_path / "out", "safetensors", dtype=None, quantization="int8")
    tensors = tensors_of(out)
    declared = read_declared(out).config.declared
    assert declared is not None
    ignore = json.loads((out / "config.json").read_text())["quantization_config"]["ignore"]
    matrices = [name.removesuffix(".weight") for name, one in tensors.items() if one.ndim > 1 and "weight" in name]
    towers = [name for name in matrices if not name.startswith("language_model") and "weight_scale" not in name]
    quantised = [name.removesuffix(".weight_scale") for name in tensors if name.endswith(".weight_scale")]
    assert len(towers) > 3
    assert len(quantised) >= 14
    for module in [*towers, *(f"model.{name}" for name in towers), "lm_head", "language_model.lm_head"]:
        assert declared.ignored.holds(module), module
        assert is_ignored(module, ignore), module
    for module in quantised:
        assert not declared.ignored.holds(module)
        assert not is_ignored(module, ignore)


def is_ignored(module: str, ignore: list[str]) -> bool:
    """By the rule of compressed-tensors' `match_name`."""
    return any(
        re.match(one.removeprefix("re:"), module) is not None if one.startswith("re:") else one == module
        for one in ignore
    )


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("internlm2", "model.layers.{}.attention."),
        ("gpt2", "transformer.h.{}.attn."),
        ("gemma3_vision", "language_model.model.layers.{}.self_attn."),
    ],
)
def test_scales_of_families_with_other_names(name: str, prefix: str, tmp_path: Path) -> None:
    source = family(name, tmp_path / "source")
    layers = range(read_declared(source).config.num_layers)
    scales = {
        f"{prefix.format(layer)}{side}_scale": np.array([0.25 + layer], np.float32) for layer in layers for side in "kv"
    }
    save_file({**load_file(source / SINGLE), **scales}, source / SINGLE)
    leaves = converted(source, tmp_path / "leaves", "orbax")
    for number, folder in enumerate((source, leaves)):
        out = converted(folder, tmp_path / f"out-{number}", "safetensors", dtype=None)
        np.testing.assert_array_equal(kv_scales(out, "float8_e4m3fn"), kv_scales(source, "float8_e4m3fn"))
