"""int4 on a CPU: two codes in a byte on one device, as many bytes as values on several and where blocks do not fit."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxinfer_kernels.cpu.packed import pack

from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import LoadedModel, abstract_model, plan_model, random_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.quantization.array import FourBits, QuantizedArray, four_bits, part_form
from jaxinfer.quantization.product import quantized_grouped_product, quantized_product
from jaxinfer.quantization.scheme import LayerSchemes, Scheme
from jaxinfer.runner.fit.costs import step_costs
from jaxinfer.runner.fit.device_weights import device_bytes
from jaxinfer.runner.fit.memory import weight_bytes
from tests.convert.conversions import assert_equal_leaves, converted, loaded
from tests.models.dense import dense_logits
from tests.models.goldens import GOLDENS
from tests.quantization.checkpoints import LLAMA, MOE
from tests.runner.devices import run_on_devices

INT4 = Scheme("int4", 32)


@pytest.mark.parametrize(
    ("platform", "devices", "held"),
    [("cpu", 1, "packed"), ("cpu", 2, "bytes"), ("gpu", 1, "types"), ("tpu", 1, "types"), ("tpu", 8, "types")],
)
def test_what_holds_four_bits(platform: str, devices: int, held: FourBits) -> None:
    assert four_bits(platform, devices) == held


@pytest.mark.parametrize(
    ("scheme", "depth", "held", "wanted"),
    [
        (INT4, 64, "packed", ((2, 3, 32), "uint8")),
        (INT4, 64, "bytes", ((2, 3, 64), "int8")),
        (INT4, 64, "types", ((2, 3, 64), "int4")),
        (Scheme("int4", 16), 48, "packed", ((2, 3, 48), "int8")),
        (Scheme("int4"), 40, "packed", ((2, 3, 40), "int8")),
        (Scheme("int8"), 64, "packed", ((2, 3, 64), "int8")),
        (Scheme("e2m1", 32), 64, "packed", ((2, 3, 64), "float8_e4m3fn")),
    ],
)
def test_how_codes_lie(scheme: Scheme, depth: int, held: FourBits, wanted: tuple[tuple[int, ...], str]) -> None:
    form = part_form(scheme, "codes", (2, 3, depth), held)
    assert (form.shape, form.dtype.name) == wanted


def test_rows_and_products_of_packed_codes() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(-8, 8, (2, 6, 64)).astype(np.int8)
    scales, x = jnp.asarray(rng.uniform(1, 2, (2, 6, 2)), jnp.float32), jnp.asarray(rng.normal(size=(5, 64)), "f4")
    plain, packed = (QuantizedArray(INT4, jnp.asarray(held), scales) for held in (codes, pack(codes)))
    assert plain.shape == packed.shape == (2, 6, 64)
    flat = [replace(each, scales=scales.reshape(12, 2)).flattened() for each in (plain, packed)]
    assert [each.shape for each in flat] == [(12, 64)] * 2
    rows = jnp.array([3, 0, 3, 11])
    np.testing.assert_array_equal(flat[1][rows], flat[0][rows])
    np.testing.assert_array_equal(*(jax.jit(quantized_product)(x, each) for each in flat))
    sizes, grouped = np.array([2, 3], np.int32), jax.jit(quantized_grouped_product, static_argnums=3)
    np.testing.assert_array_equal(*(grouped(x, each, sizes, "xla") for each in (packed, plain)))


def codes_of(model: LoadedModel) -> dict[str, jax.Array]:
    """The codes of each weight with a scheme, by what it is; experts' and the head's too."""
    found, leaves = {}, iter((*model.weights, *model.head))
    plan = plan_model(model.config, model.dtype, model.layout)
    for one in (*plan.weights, *plan.head):
        parts = [next(leaves) for _ in one.leaves("packed")]
        if one.scheme is not None and one.scheme.codes == "int4":
            found[".".join(map(str, one.path))] = parts[0]
    return found


@pytest.mark.parametrize("layout", ["unrolled", "stacked"])
@pytest.mark.parametrize("raw", [LLAMA, MOE], ids=["dense", "experts"])
def test_a_models_codes_take_half_a_byte(raw: dict, layout) -> None:
    """What the engine computes of its bytes is what arrays take."""
    config = parse_config(raw).quantised("int4")
    model = random_model(config, dtype=jnp.dtype("float32"), layout=layout)
    plan, codes = plan_model(config, model.dtype, layout), codes_of(model)
    assert len(codes) >= 4
    assert {array.dtype.name for array in codes.values()} == {"uint8"}
    values = {".".join(map(str, one.path)): one for one in (*plan.weights, *plan.head)}
    for name, array in codes.items():
        assert 2 * array.nbytes == np.prod(values[name].shape)
    arrays = {id(array): array for array in (*model.weights, *model.head)}.values()
    taken = sum(array.nbytes for array in arrays)
    assert taken == weight_bytes(model)
    every = (*plan.weights, *plan.head)
    assert taken == sum(device_bytes(one, "cpu", ONE_DEVICE) for one in every)
    by_several = sum(one.bytes("bytes") for one in every)
    assert by_several - taken == sum(array.nbytes for array in codes.values())
    shapes = abstract_model(config, dtype=model.dtype, layout=layout)
    assert [(one.shape, one.dtype) for one in (*shapes.weights, *shapes.head)] == [
        (one.shape, one.dtype) for one in (*model.weights, *model.head)
    ]


def test_a_step_reads_the_bytes_that_are_held() -> None:
    config = parse_config(LLAMA)
    plain, packed = (
        step_costs(abstract_model(config.quantised(name), dtype=jnp.dtype("float32"))).weight_bytes
        for name in ("int8", "int4")
    )
    assert packed < 0.7 * plain  # a scale of four bytes for 32 values; the head stays int8


@pytest.mark.parametrize(("group", "packed"), [(None, "uint8"), (32, "uint8"), (16, "int8")])
def test_what_blocks_do_not_divide_stays_a_byte_a_value(group: int | None, packed: str) -> None:
    """A depth of 368, which has 23 groups of 16, and any depth in groups of 16."""
    config = parse_config({**LLAMA, "intermediate_size": 384 if group == 32 else 368})
    schemes = LayerSchemes(**dict.fromkeys(("qkv", "out", "gate_up", "down"), Scheme("int4", group)))
    config = replace(config, layers=tuple(replace(kind, schemes=schemes) for kind in config.layers))
    codes = codes_of(random_model(config, dtype=jnp.dtype("float32")))
    assert {name.rpartition(".")[2]: array.dtype.name for name, array in codes.items()} == {
        **dict.fromkeys(("qkv", "out", "gate_up"), packed),
        "down": packed if group == 32 else "int8",
    }


def test_a_folder_of_leaves_holds_bytes_and_gives_packed_codes(tmp_path: Path) -> None:
    wanted = loaded(GOLDENS / "llama3", "int4")
    out = converted(GOLDENS / "llama3", tmp_path / "out", "orbax", quantization="int4")
    leaf = json.loads((out / "jaxinfer_leaves.json").read_text())["leaves"]["blocks.0.attention.qkv.codes"]
    assert (leaf["shape"][-1], leaf["dtype"]) == (32, "int8")
    found = loaded(out)
    assert {array.dtype.name for array in codes_of(found).values()} == {"uint8"}
    assert_equal_leaves(found, wanted)


def save_logits(file: str) -> None:
    """Logits on two devices, which hold a code in a byte."""
    mesh = MeshConfig({"tensor": 2})
    config = parse_config(LLAMA).quantised("int4").over(*mesh.parts)
    model = random_model(config, dtype=jnp.dtype("float32"), mesh=make_mesh(mesh), rules=mesh.rules)
    assert {array.dtype.name for array in codes_of(model).values()} == {"int8"}
    plan = plan_model(config, model.dtype)
    assert weight_bytes(model) == sum(device_bytes(one, "cpu", mesh) for one in (*plan.weights, *plan.head))
    np.save(file, np.asarray(dense_logits(model, np.arange(9))))


def test_two_devices_keep_a_byte_a_value(tmp_path: Path) -> None:
    file = tmp_path / "logits.npy"
    run_on_devices(save_logits, 2, str(file))
    model = random_model(parse_config(LLAMA).quantised("int4"), dtype=jnp.dtype("float32"))
    wanted = np.asarray(dense_logits(model, np.arange(9)))
    np.testing.assert_allclose(np.load(file), wanted, atol=1e-4 * np.abs(wanted).max())
