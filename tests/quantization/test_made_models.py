"""Models whose weights are quantised while they are loaded, against plain models of the values that result."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format
from safetensors.numpy import load_file, save_file

from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import LoadedModel, load_model, plan_model, random_model
from jaxinfer.models.weight import Weight
from jaxinfer.parallel.mesh import make_mesh, shard_shape
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.parallel.rules import DEFAULT_RULES, ShardingRules
from jaxinfer.quantization.made import MADE
from jaxinfer.quantization.scheme import LayerSchemes, Scheme
from scripts.numpy_decoder import NumpyDecoder
from tests.models.goldens import GOLDENS, load
from tests.models.paged import ODD_CHUNKS, PagedModel, run_paged
from tests.quantization.checkpoints import LLAMA, MOE, values_of
from tests.quantization.rounding import int8_values, rounded
from tests.turns import one_of

WEIGHTS = "model.safetensors"
WEIGHT_ONLY = ("int8", "int4", "fp8")
FAMILIES = ("llama3", "gemma3", "qwen3_moe", "gpt_oss", "qwen2_moe", "gpt2", "phi3")
"""Dense; with windows; with experts, of columns before rows, and with shared ones; columns first; fused."""
CASES = [
    pytest.param(family, name, marks=() if place % len(WEIGHT_ONLY) == number else pytest.mark.long)
    for place, family in enumerate(FAMILIES)
    for number, name in enumerate(WEIGHT_ONLY)
]


def quantised(folder: Path, name: str, **options) -> LoadedModel:
    config = load(folder).config
    return load_model(folder, config.quantised(name), dtype=jnp.float32, **options)


def write_folder(family: str, folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / WEIGHTS)
    (folder / "config.json").write_bytes((GOLDENS / family / "config.json").read_bytes())
    return folder


def with_values(plain: LoadedModel, values: list[np.ndarray]) -> LoadedModel:
    arrays, count = tuple(map(jnp.asarray, values)), len(plain.weights)
    embed = next(i for i, one in enumerate(plan_model(plain.config, plain.dtype).weights) if one.path == ("embed",))
    return replace(plain, weights=arrays[:count], head=arrays[count:] or (arrays[embed],))


def _rounded(key: str, tensor: np.ndarray, name: str) -> np.ndarray:
    if tensor.ndim < 2 or key.endswith(("_bias", "wpe.weight")) or "router" in key or key.endswith("gate.weight"):
        return tensor
    if "embed" in key or key.startswith("lm_head") or key.endswith("wte.weight"):
        return int8_values(tensor)
    columns_first = key.endswith(("experts.gate_up_proj", "experts.down_proj")) or ".c_" in key
    return np.ascontiguousarray(rounded(name, tensor, axis=-2 if columns_first else -1))


@pytest.mark.few(1)
@pytest.mark.parametrize(("family", "name"), CASES)
def test_values_are_rounded_and_multiplied(family: str, name: str, tmp_path: Path) -> None:
    """Of values that lie halfway between two codes, as some of bfloat16 do, the last bit of a quotient decides."""
    token_ids = np.load(GOLDENS / family / "golden.npz")["token_ids"]
    tensors = load_file(GOLDENS / family / WEIGHTS)
    rounded_by_numpy = {key: _rounded(key, tensor, name) for key, tensor in tensors.items()}
    plain, model = load(write_folder(family, tmp_path, rounded_by_numpy)), quantised(GOLDENS / family, name)
    values, own_head = list(values_of(model).values()), () if plain.config.tie_word_embeddings else plain.head
    wanted = [np.asarray(leaf) for leaf in (*plain.weights, *own_head)]
    off = sum(int((np.abs(one - other) > 1e-6).sum()) for one, other in zip(values, wanted, strict=True))
    assert off <= 2e-3 * sum(one.size for one in values)
    found = run_paged(PagedModel(model), token_ids, ODD_CHUNKS)
    of_values = run_paged(PagedModel(with_values(plain, values)), token_ids, ODD_CHUNKS)
    for one, other in zip(found, of_values, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("name", one_of(len(MADE), MADE))
def test_both_layouts_give_the_same(name: str) -> None:
    golden = np.load(GOLDENS / "gemma3" / "golden.npz")
    one, other = (
        run_paged(PagedModel(quantised(GOLDENS / "gemma3", name, layout=layout)), golden["token_ids"], ODD_CHUNKS)
        for layout in ("unrolled", "stacked")
    )
    np.testing.assert_allclose(one[0], other[0], atol=1e-4)


class RoundedRows(NumpyDecoder):
    """Llama with weights and activations in int8 or e4m3, but for embedding and head."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], name: str):
        super().__init__(config, {key: _rounded(key, tensor, name) for key, tensor in tensors.items()})
        self.name = name

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return super().linear(name, rounded(self.name, x).astype(np.float64))


@pytest.mark.long
@pytest.mark.parametrize("name", ["int8-w8a8", "fp8-w8a8"])
def test_rounded_activations(name: str, tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
        **{"num_key_value_heads": 2, "vocab_size": 80, "max_position_embeddings": 64, "rms_norm_eps": 1e-5},
        "tie_word_embeddings": False,
    }
    rng = np.random.default_rng(0)
    shapes = NumpyDecoder(config, {}).shapes()
    tensors = {key: (rng.standard_normal(shape) * 0.3).astype("f4") for key, shape in shapes.items()}
    save_file(tensors, tmp_path / WEIGHTS)
    (tmp_path / "config.json").write_text(json.dumps(config))
    token_ids = rng.integers(0, 80, 40)
    wanted = RoundedRows(config, tensors, name).logits(token_ids)
    plain = NumpyDecoder(config, tensors).logits(token_ids)
    found = run_paged(PagedModel(quantised(tmp_path, name)), token_ids, ODD_CHUNKS)[0]
    assert np.abs(wanted - plain).max() > 1e-2
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("family", ["llama3", "qwen2_moe"])
def test_bytes_on_the_device_are_as_computed(family: str, name: str) -> None:
    model = quantised(GOLDENS / family, name)
    plan = plan_model(model.config, jnp.dtype(jnp.float32))
    arrays = {id(array): array for array in (*model.weights, *model.head)}.values()
    assert sum(array.nbytes for array in arrays) == sum(one.bytes("packed") for one in (*plan.weights, *plan.head))
    for one in plan.weights:
        if one.scheme is not None:
            assert 8 * one.bytes("types") == one.scheme.bits(one.shape)


def test_rows_of_a_table_are_contiguous_and_a_column_of_scales_is_not() -> None:
    """A TPU would give each scale of a column by rows 128 lanes."""
    config = load(GOLDENS / "llama3").config.quantised("int8")
    (embed,) = [one for one in plan_model(config, jnp.dtype(jnp.float32)).weights if one.path == ("embed",)]
    codes, scales = embed.shardings(DEFAULT_RULES, make_mesh())
    assert isinstance(codes, Format)
    assert not isinstance(scales, Format)


def test_rows_are_one_axis_in_all_parts_but_codes() -> None:
    """Over a mesh it is split as the first of the codes' axes of rows, also where a rule names an inner one."""
    scheme = Scheme("e2m1", 16, scales="e4m3", factors=True)
    raw = parse_config({**MOE, "num_experts": 4})
    schemes = LayerSchemes(**dict.fromkeys(raw.layers[0].depths(raw.hidden_size), scheme))
    config = replace(raw, layers=tuple(replace(kind, schemes=schemes) for kind in raw.layers))
    weights = {one.path[-1]: one for one in plan_model(config, jnp.dtype(jnp.float32)).weights}

    def held(name: str, mesh: MeshConfig) -> list[tuple[int, ...]]:
        return [shard_shape(mesh, leaf.axes, leaf.shape) for leaf in weights[name].leaves("types")]

    assert held("experts_gate_up", ONE_DEVICE) == [(4, 16, 2, 16, 256), (4, 512, 1), (4, 512, 16)]
    assert held("experts_gate_up", MeshConfig({"expert": 2, "tensor": 2})) == [
        *((2, 8, 2, 16, 256), (2, 256, 1), (2, 256, 16))
    ]
    inner = MeshConfig({"tensor": 2}, ShardingRules(kv_heads=(), q_per_kv=("tensor",)))
    assert held("qkv", inner) == held("qkv", ONE_DEVICE) == [(2, 4, 64, 256), (512, 1), (512, 16)]


@pytest.mark.parametrize(
    ("group", "columns", "platform", "order"),
    [(32, 256, "tpu", (0, 2, 1)), (2, 256, "tpu", None), (2, 128, "tpu", (0, 2, 1)), (32, 256, "cpu", None)],
)
def test_scales_lie_as_a_tpus_kernels_take_them(
    group: int, columns: int, platform: str, order: tuple[int, ...] | None
) -> None:
    """By groups, unless groups fill 128 lanes. columns: of a device."""
    weight = Weight(("down",), (3, 64, 256), jnp.dtype("float32"), ("expert", "embed", "mlp"), 1, 0, None)
    codes, scales = (held := weight._replace(scheme=Scheme("int4", group))).leaves("types")
    assert held.order(scales, columns, platform) == order
    assert held.order(codes, columns, platform) is None


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("scheme", "error"),
    [
        (Scheme("int4", 32, zeros=True), 0.15),
        (Scheme("int8", 32, ordered=True), 0.01),
        (Scheme("e2m1", 16, scales="e4m3", factors=True), 0.2),
    ],
    ids=str,
)
@pytest.mark.parametrize("raw", [LLAMA, MOE], ids=["dense", "experts"])
def test_random_models_of_every_scheme(raw: dict[str, Any], scheme: Scheme, error: float) -> None:
    """Values of the plain one of that seed, rounded; columns of any order are reversed."""
    plain = parse_config(raw)
    schemes = dict.fromkeys(plain.layers[0].depths(plain.hidden_size), scheme)
    config = replace(plain, layers=tuple(replace(kind, schemes=LayerSchemes(**schemes)) for kind in plain.layers))
    found, wanted = (values_of(random_model(one, dtype=jnp.float32, seed=4)) for one in (config, plain))
    for name, values in wanted.items():
        held = name.rpartition(".")[2] in schemes
        right = values[..., ::-1] if held and scheme.ordered else values
        np.testing.assert_allclose(found[name], right, rtol=0, atol=error * np.abs(values).max() if held else 0)
