"""What a machine measured of itself: how files are read, what products take, and pages of engines on a CPU."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.cli import plan
from jaxinfer.config import EngineConfig, ModelConfig
from jaxinfer.errors import ParameterError
from jaxinfer.model_config.registry import parse_config
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.plan.calibration import read_calibration
from jaxinfer.plan.chip import Products, read_chip
from jaxinfer.plan.estimate import MeshPlan, plan_mesh
from jaxinfer.plan.work import Rows
from tests.runner.devices import run_on_devices
from tests.runner.mesh_matrix import MODELS

POINTS = [[1, 1e-9], [8, 2e-9], [32, 6e-9]]
MEASURED: dict[str, Any] = {
    "chip": "cpu",
    "device": "cpu",
    "memory_bytes": 16 << 30,
    "bytes_per_second": 1e10,
    "ops_per_second": {"float32": 1e11},
    "products": {"float32": POINTS},
    "source": "made up",
}


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(**changes: Any) -> Path:
        file = tmp_path / "measured.json"
        values = {key: value for key, value in (MEASURED | changes).items() if value is not None}
        file.write_text(json.dumps(values))
        return file

    return write


def tiny(file: Path, mesh: MeshConfig = ONE_DEVICE) -> MeshPlan:
    asked = EngineConfig(load=ModelConfig(max_model_len=64))
    return plan_mesh(asked, parse_config(MODELS["dense"]), mesh, "it", read_calibration(file))


@pytest.mark.parametrize(
    ("rows", "seconds"), [(0.5, 1e-9), (1, 1e-9), (4.5, 1.5e-9), (8, 2e-9), (20, 4e-9), (32, 6e-9), (64, 12e-9)]
)
def test_seconds_of_products_lie_between_those_that_were_measured(rows: float, seconds: float) -> None:
    products = Products(tuple((int(count), each) for count, each in POINTS))
    assert products.seconds(rows, 1000) == pytest.approx(1000 * seconds)


def test_steps_take_what_products_were_measured_to_take(written: Callable[..., Path]) -> None:
    found = tiny(written())
    terms = {term.name: term for term in found.time(Rows(8, 1, 16)).terms}
    numbers = sum(count for count, _ in found.model.weights.values())
    assert terms["weights"].seconds == pytest.approx(2e-9 * numbers)
    assert terms["head"].seconds == pytest.approx(2e-9 * found.model.head[0])
    assert found.model.dtype.name == "float32"


def test_measured_products_are_those_of_plain_weights(written: Callable[..., Path]) -> None:
    """Codes are read in less time: theirs are reckoned from bytes and operations."""
    asked, chip = EngineConfig(load=ModelConfig(max_model_len=64)), read_calibration(written())
    config = parse_config(MODELS["dense"])
    plain, int8 = (plan_mesh(asked, one, ONE_DEVICE, "it", chip) for one in (config, config.quantised("int8")))
    first, second = (each.time(Rows(8, 1, 16)).terms for each in (plain, int8))
    codes = max((term for term in second if term.name == "weights"), key=lambda term: term.bytes)
    assert codes.seconds == pytest.approx(max(codes.bytes / 1e10, codes.ops / 1e11))
    assert codes.seconds < max(term.seconds for term in first if term.name == "weights")


def test_measures_of_a_chip_replace_its_peaks(written: Callable[..., Path]) -> None:
    """Those of one device, of which a v7x has two."""
    file = written(chip="v7x", products={}, ops_per_second={"bfloat16": 1e14}, bytes_per_second=2e12)
    found, known = read_calibration(file), read_chip("v7x")
    assert found.memory.bytes_per_second == 4e12
    assert found.ops_per_second["bfloat16"] == 2e14
    assert found.memory.bytes == known.memory.bytes
    assert found.links == known.links
    assert found.ops_per_second["float8"] == known.ops_per_second["float8"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"chip": "v8"}, "chip: 'v8' must be one of cpu, a100"),
        ({"source": None}, "lacks source"),
        ({"bytes_per_second": 0}, "bytes_per_second: 0 must be a number above 0"),
        ({"bytes_per_second": "fast"}, "bytes_per_second: 'fast' must be a number above 0"),
        ({"ops_per_second": [1]}, "ops_per_second: must be an object by type"),
        ({"ops_per_second": {"float32": True}}, "ops_per_second.float32: True must be a number above 0"),
        ({"products": {"float32": []}}, "products.float32: must be a list of [rows, seconds"),
        ({"products": {"float32": [[8, 1e-9], [1, 1e-9]]}}, "products.float32: rows must rise"),
        ({"products": {"float32": [[0.5, 1e-9]]}}, "products.float32: 0.5 must be a number of at least 1"),
        ({"products": {"float99": POINTS}}, "products: 'float99' must be one of float32, bfloat16"),
        ({"chip": {}}, "must be one of cpu, a100"),
        ({"bytes_per_second": 10**400}, "must be a number above 0, and less than 1e+30"),
        ({"ops_per_second": {}}, "ops_per_second: needs one of float32"),
        ({"memory_bytes": 0.5}, "memory_bytes: 0.5 must be a number of at least 1"),
        ({"extra": 1}, "'extra': unknown; known are chip"),
    ],
)
def test_wrong_files_are_refused(written: Callable[..., Path], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError) as error:
        read_calibration(written(**changes))
    assert error.value.param == "calibration"
    assert words in error.value.message


def test_what_is_no_file_of_measures(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no")
    (tmp_path / "list").write_text("[]")
    for name, words in (("none", "cannot be read"), ("text", "is not JSON"), ("list", "must be an object")):
        with pytest.raises(ParameterError, match=words):
            read_calibration(tmp_path / name)


def test_devices_of_a_cpu_share_it(written: Callable[..., Path]) -> None:
    """Two take no less time than one, and half of its memory each; what does not fit has no pages."""
    one, two = (tiny(written(), MeshConfig({"tensor": count})) for count in (1, 2))
    assert two.memory.total == one.memory.total // 2
    assert two.time(Rows(8, 1, 16)).seconds >= one.time(Rows(8, 1, 16)).seconds
    full = tiny(written(memory_bytes=1 << 20))
    assert full.memory.left < 0
    assert not full.memory.blocks
    assert full.holds(1) == 0


def test_flags(written: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, file = tmp_path / "tiny.json", str(written())
    model.write_text(json.dumps(MODELS["dense"]))
    common = [str(model), "--mesh", "tp2", "--no-compile"]
    assert plan.run([*common, "--calibration", file, "--json"]) == 0
    (mesh,) = json.loads(capsys.readouterr().out)["meshes"]
    assert (mesh["chip"], mesh["topology"], mesh["dtype"]) == ("cpu", "cpu:2", "float32")
    with pytest.raises(ParameterError, match="is of cpu, not of v6e"):
        plan.run([*common, "--calibration", file, "--chip", "v6e"])
    with pytest.raises(ParameterError, match="is of cpu, and mesh v6e-8 is made for v6e"):
        plan.run([str(model), "--mesh", "v6e-8", "--no-compile", "--calibration", file])
    with pytest.raises(ParameterError, match="a CPU's figures are its own"):
        plan.run([*common, "--chip", "cpu"])


PAGES = """
import json, sys
from pathlib import Path
from tempfile import TemporaryDirectory
import jax.numpy as jnp
from jaxinfer.build import _with_blocks
from jaxinfer.models.loaded import random_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.runner.sizes import plan_shapes, this_device
from tests.plan.test_calibration import *

with TemporaryDirectory() as folder:
    file = Path(folder) / "measured.json"
    file.write_text(json.dumps(MEASURED))
    for axes in ({}, {"tensor": 8}, {"data": 2, "tensor": 4}):
        mesh, asked = MeshConfig(axes), EngineConfig(load=ModelConfig(max_model_len=64))
        for name in ("dense", "windowed"):
            if name == "windowed" and mesh.size == 8 and "data" not in axes:
                continue
            decoder = parse_config(MODELS[name])
            plan = plan_mesh(asked, decoder, mesh, "it", read_calibration(file))
            over = decoder.over(*mesh.parts)
            model = random_model(over, dtype=jnp.dtype("float32"), mesh=make_mesh(mesh), rules=mesh.rules)
            shapes = _with_blocks(asked, model, plan_shapes(asked, over, this_device(), mesh.data), None, {})
            assert tuple(group.num_blocks for group in shapes.groups) == plan.memory.blocks, (axes, name)
            assert shapes == plan.shapes, (shapes, plan.shapes)
"""


def test_pages_on_a_cpu_are_those_of_the_engine() -> None:
    """On one device and on eight."""
    run_on_devices(PAGES, 8)
