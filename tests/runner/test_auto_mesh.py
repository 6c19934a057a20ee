"""`--mesh auto` for models and machines that are known, by their sizes as published."""

import logging
from pathlib import Path

import jax.numpy as jnp
import pytest
from program_models import DENSE, GPT_OSS, QWEN3_MOE, Model

from jaxinfer.build import build_engine
from jaxinfer.config import EngineConfig, ParallelConfig
from jaxinfer.errors import ParameterError
from jaxinfer.parallel.asked_mesh import served_mesh
from jaxinfer.parallel.auto_mesh import MeshChoice, Taken, choose_mesh
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.runner.fit.inspection import taken_of_device
from tests.convert.conversions import converted
from tests.models.goldens import GOLDENS

QWEN3_06B, LLAMA_8B, QWEN25_05B = DENSE
LLAMA_70B = Model(
    "Llama-3.1-70B",
    LLAMA_8B.fields
    | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
)
MIXTRAL = Model(
    "Mixtral-8x7B",
    {
        "architectures": ["MixtralForCausalLM"],
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
)
# Devices, and nine tenths of the bytes of one: as configs/targets has them.
V5E_1, V5E_8 = (1, 15_480_000_000), (8, 15_480_000_000)
V6E_4, V6E_8 = (4, 30_960_000_000), (8, 30_960_000_000)
H200_1, H200_8 = (1, 136_257_837_465), (8, 136_257_837_465)
CONTEXT = 8192
EXPECTED = [
    (QWEN3_06B, V5E_1, {"tensor": 1, "data": 1}),
    (QWEN3_06B, V5E_8, {"tensor": 1, "data": 8}),  # 1.2 GB
    (QWEN25_05B, H200_8, {"tensor": 1, "data": 8}),
    (LLAMA_8B, V5E_8, {"tensor": 2, "data": 4}),  # 16.1 GB: more than one device has
    (LLAMA_8B, V6E_4, {"tensor": 1, "data": 4}),  # 52 % of a device
    (LLAMA_8B, H200_1, {"tensor": 1, "data": 1}),
    (QWEN3_MOE, V6E_8, {"tensor": 4, "data": 2}),  # 61 GB: 98 % of two devices, 49 % of four
    (QWEN3_MOE, H200_1, {"tensor": 1, "data": 1}),
    (MIXTRAL, V6E_8, {"tensor": 8, "data": 1}),  # 93 GB: 75 % of four devices, 38 % of eight
    (LLAMA_70B, V6E_8, {"tensor": 8, "data": 1}),  # 141 GB
    (LLAMA_70B, H200_8, {"tensor": 2, "data": 4}),
    (GPT_OSS, V5E_8, {"tensor": 8, "data": 1}),  # 42 GB in bfloat16: whole experts, as 2880 channels do not divide
]


def choose(model: Model, machine: tuple[int, int]) -> MeshChoice:
    devices, memory = machine
    config = model.config(None).at_context(CONTEXT)
    dtype = jnp.dtype("bfloat16")
    return choose_mesh(devices, memory, lambda mesh: taken_of_device(config, dtype, "tpu", mesh))


@pytest.mark.parametrize(("model", "machine", "axes"), EXPECTED, ids=lambda value: getattr(value, "name", None))
def test_models_and_machines(model: Model, machine: tuple[int, int], axes: dict[str, int]):
    mesh, reason = choose(model, machine)
    assert dict(mesh.axes) == axes
    assert "weights take" in reason


def test_what_no_mesh_holds_is_told_with_sizes():
    with pytest.raises(ParameterError, match=r"auto: 1 devices of 14\.4 GiB do not hold the model; over 1 .* GiB"):
        choose(LLAMA_70B, V5E_1)


def test_more_devices_only_where_they_leave_room():
    """Weights that shrink with the devices: 61 of 100 are too many, 60 are not."""
    for weights, size in ((60, 1), (61, 2)):
        mesh, _ = choose_mesh(4, 100, lambda mesh, weights=weights: Taken(weights // mesh.shards("mlp"), 1))
        assert mesh.axes == {"tensor": size, "data": 4 // size}


def test_the_most_devices_where_none_leave_room():
    mesh, _ = choose_mesh(4, 100, lambda mesh: Taken(90, 5))
    assert mesh.axes == {"tensor": 4, "data": 1}


def test_sizes_that_the_model_does_not_divide_over_are_passed_over():
    def taken(mesh: MeshConfig) -> Taken:
        if mesh.size == 2:
            raise ParameterError("mesh", "mlp, 9, cannot be split over tensor=2")
        return Taken(200 // mesh.size, 1)

    assert choose_mesh(4, 100, taken).mesh.axes == {"tensor": 4, "data": 1}


@pytest.mark.parametrize(
    "flag", ["tensor_parallel_size", "attention_data_parallel", "enable_expert_parallel", "redundant_experts"]
)
def test_flags_that_contradict_it(flag: str):
    assert served_mesh(ParallelConfig(mesh="auto")) is None
    asked = ParallelConfig(**{"mesh": "auto", flag: True if flag.startswith("enable") else 2})
    with pytest.raises(ParameterError, match=f"{flag}: contradicts mesh auto"):
        served_mesh(asked)


class Measured(Exception):
    """Ends the start of an engine where its mesh is chosen."""


def start(folder: Path) -> None:
    build_engine(EngineConfig(str(folder), parallel=ParallelConfig(mesh="auto")))


def test_a_folder_of_leaves_is_measured_in_its_own_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Which it is loaded in, though `auto` is bfloat16 elsewhere."""

    def taken(config: object, dtype: jnp.dtype, platform: str, mesh: MeshConfig) -> Taken:
        raise Measured(dtype.name, platform)

    folder = converted(GOLDENS / "qwen2", tmp_path / "out", "orbax", dtype="float32")
    monkeypatch.setattr("jaxinfer.build.placed.platform_name", lambda: "gpu")
    monkeypatch.setattr("jaxinfer.build.placed.usable_memory", lambda share: 2**30)
    monkeypatch.setattr("jaxinfer.build.placed.taken_of_device", taken)
    with pytest.raises(Measured) as measured:
        start(folder)
    assert measured.value.args == ("float32", "gpu")


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_what_is_told_of_devices_whose_memory_is_not_known(
    platform: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def made(asked: MeshConfig) -> None:
        raise Measured(asked)

    monkeypatch.setattr("jaxinfer.build.placed.platform_name", lambda: platform)
    monkeypatch.setattr("jaxinfer.build.placed.usable_memory", lambda share: None)
    monkeypatch.setattr("jaxinfer.build.placed.make_mesh", made)
    with pytest.raises(Measured), caplog.at_level(logging.INFO):
        start(GOLDENS / "qwen2")
    (told,) = (record for record in caplog.records if "--mesh auto" in record.message)
    if platform == "cpu":
        assert told.levelname == "INFO"
        assert "one device, since a CPU's memory is not divided" in told.message
    else:
        assert told.levelname == "WARNING"
        assert "one of 1 devices, since tpu does not tell how much memory" in told.message
