"""What a machine measured of itself: how files are read, what products take, and pages of engines on a CPU."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax.numpy as jnp
import pytest

from jaxinfer.build.fitted import fitted_shapes
from jaxinfer.cli import plan
from jaxinfer.config import EngineConfig, ModelConfig, SchedulerConfig
from jaxinfer.errors import ParameterError
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import random_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.plan.calibration import read_calibration
from jaxinfer.plan.chip import Chip, Table, read_chip
from jaxinfer.plan.estimate import MeshPlan, plan_mesh
from jaxinfer.plan.work import ShardRows
from jaxinfer.quantization.kv import KV_CODES
from jaxinfer.runner.fit import fitting
from jaxinfer.runner.fit.sizes import plan_shapes, this_device
from jaxinfer.runner.step.stage import StagedModel
from tests.material import REPOSITORY
from tests.runner.devices import run_on_devices
from tests.runner.mesh_matrix import MODELS

PRODUCTS = {"rows": [1, 8, 32], "inputs": [1, 65], "outputs": [1, 101]}
MEASURED: dict[str, Any] = {
    "chip": "cpu",
    "device": "cpu",
    "memory_bytes": 16 << 30,
    "bytes_per_second": 1e10,
    "ops_per_second": {"float32": 1e11},
    "tables": {
        "products.float32": PRODUCTS
        | {"seconds": [[[1e-9 * rows * k * n for n in (1, 101)] for k in (1, 65)] for rows in (1, 8, 32)]},
        "attention": {"rows": [1, 32], "keys": [1, 64], "token_bytes": [1], "seconds": [[[1e-3], [8e-3]]] * 2},
        "sampling": {"rows": [1, 32], "columns": [1], "seconds": [[1e-2], [3e-2]]},
        "layer": {"rows": [1, 32], "width": [1], "seconds": [[1e-4], [32e-4]]},
    },
    "source": "made up",
}
"""A product takes a nanosecond for each row and number of the weights: between points, too."""


GRID = {"rows": [1, 8], "columns": [1], "seconds": [[1.0], [2.0]]}


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
    ("place", "seconds"),
    [
        *[
            ((rows, 10), each)
            for rows, each in ((0.5, 1), (1, 1), (4.5, 1.5), (8, 2), (20, 4), (32, 6), (64, 32 / 6 + 6))
        ],
        *[((8, keys), each) for keys, each in ((1, 2), (15, 2.5), (20, 3), (30, 4))],
        ((4.5, 20), 2.25),
    ],
)
def test_seconds_lie_between_those_that_were_measured(place: tuple[float, float], seconds: float) -> None:
    """At 10 and 20 keys; the second is half as much more."""
    table = Table(((1, 8, 32), (10, 20)), [[1, 1.5], [2, 3], [6, 9]])
    assert table.at(*place) == pytest.approx(seconds)


def test_beyond_the_last_point_nothing_costs_less() -> None:
    assert Table(((1, 8),), [2, 1]).at(16) == 1
    assert Table(((4,),), [2]).at(16) == 2


def test_steps_take_what_was_measured(written: Callable[..., Path]) -> None:
    """A nanosecond for each row and number of a matrix; of attention 3 ms at 19 keys, in each of the layers."""
    found = tiny(written())
    config = found.model.config
    assert len(config.kv_groups) == 1
    assert found.model.dtype.name == "float32"
    terms = {term.name: term for term in found.time(ShardRows(8, 1, 18)).terms}
    (weights,) = found.model.weights
    matrices = sum(inputs * outputs * count for inputs, outputs, count in weights.matrices)
    assert terms["weights"].seconds == pytest.approx(8e-9 * matrices)
    assert terms["head"].seconds == pytest.approx(8e-9 * found.model.head[0])
    assert terms["keys and values"].seconds == pytest.approx(len(config.layers) * (1e-3 + 7e-3 * 18 / 63))
    assert terms["sampling"].seconds == pytest.approx(1e-2 + 2e-2 * 7 / 31)
    assert terms["between products"].seconds == pytest.approx(len(config.layers) * 8e-4)
    assert {terms[name].bound for name in ("sampling", "between products")} == {"measured"}
    assert terms["weights"].bound == "memory"
    plain = written(tables={})
    assert "sampling" not in {term.name for term in tiny(plain).time(ShardRows(8, 1, 18)).terms}


def test_prompts_attend_at_peak_rates_and_one_position_of_each_is_scored(written: Callable[..., Path]) -> None:
    """Rows that nobody has cost nothing."""
    found = tiny(written())
    both = {term.name: term for term in found.time(ShardRows(2, 8, 4), ShardRows(3, 1, 18)).terms}
    decoding = {term.name: term for term in found.time(ShardRows(3, 1, 18)).terms}
    plain = tiny(written(tables={}))
    prompts = {term.name: term for term in plain.time(ShardRows(2, 8, 4)).terms}
    attention = decoding["keys and values"].seconds + prompts["keys and values"].seconds
    assert both["keys and values"].seconds == pytest.approx(attention)
    assert both["head"].seconds == pytest.approx(5e-9 * found.model.head[0])
    assert both["weights"].seconds == pytest.approx(
        19e-9 * sum(i * o * n for i, o, n in found.model.weights[0].matrices)
    )
    assert found.time(ShardRows(2, 8, 4), ShardRows(0, 1, 18)) == found.time(ShardRows(2, 8, 4))


def test_what_was_measured_is_of_its_type(written: Callable[..., Path]) -> None:
    asked = EngineConfig(load=ModelConfig(max_model_len=64))
    config = parse_config(MODELS["dense"])
    codes = plan_mesh(asked, config.keeping(KV_CODES["int8"]), ONE_DEVICE, "it", read_calibration(written()))
    terms = {term.name: term for term in codes.time(ShardRows(8, 1, 18)).terms}
    assert terms["keys and values"].seconds < 1e-5
    other = replace(asked, load=ModelConfig(max_model_len=64, dtype="bfloat16"))
    with pytest.raises(ParameterError, match="the calibration has rates of float32 alone"):
        plan_mesh(other, config, ONE_DEVICE, "it", read_calibration(written()))


def test_matrices_are_those_of_the_layers(written: Callable[..., Path]) -> None:
    """As the configuration has them; all other weights are vectors. Over two devices each has half of the sizes."""
    sizes = MODELS["dense"]
    width, inner, layers = sizes["hidden_size"], sizes["intermediate_size"], sizes["num_hidden_layers"]
    heads, shared = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    size = sizes.get("head_dim", width // heads)
    for devices in (1, 2):
        (weights,) = tiny(written(), MeshConfig({"tensor": devices})).model.weights
        assert sorted(weights.matrices) == sorted(
            [
                (width, (heads + 2 * shared) * size // devices, layers),
                (heads * size // devices, width, layers),
                (width, 2 * inner // devices, layers),
                (inner // devices, width, layers),
            ]
        )


def test_measured_products_are_those_of_plain_weights(written: Callable[..., Path]) -> None:
    """Codes are read in less time: theirs are reckoned from bytes and operations."""
    asked, chip = EngineConfig(load=ModelConfig(max_model_len=64)), read_calibration(written())
    config = parse_config(MODELS["dense"])
    plain, int8 = (plan_mesh(asked, one, ONE_DEVICE, "it", chip) for one in (config, config.quantised("int8")))
    first, second = (each.time(ShardRows(8, 1, 16)).terms for each in (plain, int8))
    codes = max((term for term in second if term.name == "weights"), key=lambda term: term.bytes)
    assert codes.seconds == pytest.approx(max(codes.bytes / 1e10, codes.ops / 1e11), rel=0.01)  # vectors are apart
    assert codes.seconds < max(term.seconds for term in first if term.name == "weights")


def test_measures_of_a_chip_replace_its_peaks(written: Callable[..., Path]) -> None:
    """Those of one device, of which a v7x has two."""
    file = written(chip="v7x", tables={}, ops_per_second={"bfloat16": 1e14}, bytes_per_second=2e12)
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
        ({"bytes_per_second": 0}, "bytes_per_second: 0 must be a number from 1000 to 1e+30"),
        ({"bytes_per_second": "fast"}, "bytes_per_second: 'fast' must be a number from"),
        ({"ops_per_second": [1]}, "ops_per_second: must be an object"),
        ({"ops_per_second": {"float32": True}}, "ops_per_second.float32: True must be a number from"),
        ({"tables": [1]}, "tables: must be an object"),
        ({"tables": {"products.float99": 1}}, "tables: 'products.float99' must be one of products.float32"),
        ({"tables": {"attention": {"rows": [1]}}}, "tables.attention lacks keys, token_bytes, seconds"),
        ({"tables": {"sampling": GRID | {"rows": [8, 1]}}}, "tables.sampling.rows: numbers must rise"),
        ({"tables": {"sampling": GRID | {"rows": []}}}, "tables.sampling.rows: must be a list of integers"),
        ({"tables": {"sampling": GRID | {"rows": [0.5]}}}, "tables.sampling.rows: must be a list of integers from 1"),
        (
            {"tables": {"sampling": GRID | {"keys": [1]}}},
            "tables.sampling: 'keys' must be one of rows, columns, seconds",
        ),
        ({"tables": {"sampling": GRID | {"seconds": [[1.0]]}}}, "tables.sampling.seconds: must be lists in lists"),
        ({"tables": {"sampling": GRID | {"seconds": [[1.0], 2]}}}, "tables.sampling.seconds: must be lists in lists"),
        (
            {"tables": {"sampling": GRID | {"seconds": [[1.0], [0]]}}},
            "tables.sampling.seconds: 0 must be a number from 1e-12",
        ),
        ({"chip": {}}, "must be one of cpu, a100"),
        ({"bytes_per_second": 10**400}, "must be a number from 1000 to 1e+30"),
        ({"bytes_per_second": 1e-300}, "must be a number from 1000 to 1e+30"),
        ({"ops_per_second": {}}, "ops_per_second: needs one of float32"),
        ({"memory_bytes": 0.5}, "memory_bytes: 0.5 must be a number from 1"),
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
    assert two.time(ShardRows(8, 1, 16)).seconds >= one.time(ShardRows(8, 1, 16)).seconds
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


def compare_pages() -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "measured.json"
        file.write_text(json.dumps(MEASURED))
        fitting.machine_memory = lambda: MEASURED["memory_bytes"]
        for axes in ({}, {"tensor": 8}, {"data": 2, "tensor": 4}):
            mesh, asked = MeshConfig(axes), EngineConfig(load=ModelConfig(max_model_len=64))
            for name in ("dense", "windowed"):
                if name == "windowed" and mesh.size == 8 and "data" not in axes:
                    continue
                decoder = parse_config(MODELS[name])
                plan = plan_mesh(asked, decoder, mesh, "it", read_calibration(file))
                over = decoder.over(*mesh.parts)
                model = random_model(over, dtype=jnp.dtype("float32"), mesh=make_mesh(mesh), rules=mesh.rules)
                sizes = plan_shapes(asked, over, this_device(), mesh.data)
                shapes = fitted_shapes(asked, StagedModel((model,)), sizes, None, {})
                assert tuple(group.num_blocks for group in shapes.groups) == plan.memory.blocks, (axes, name)
                assert shapes == plan.shapes, (shapes, plan.shapes)


@pytest.mark.long
def test_pages_on_a_cpu_are_those_of_the_engine() -> None:
    """On one device and on eight."""
    run_on_devices(compare_pages, 8)


LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip


def test_the_shipped_figures_of_an_h100_give_what_was_measured_on_one() -> None:
    """Decode steps with CUDA graphs, as they are by default, and prompts: within 15 %. Peak rates are further off."""
    parts = json.loads((REPOSITORY / "benchmarks" / "results" / "h100_steps.json").read_text())["parts"]
    prompts = [step for step in parts["steps-large"]["steps"] if step["kind"] == "prefill"]
    steps = [*parts["loops-large"]["steps"], *prompts]
    asked = EngineConfig(scheduler=SchedulerConfig(max_num_seqs=256))

    def ratios(chip: Chip) -> list[float]:
        planned = plan_mesh(asked, parse_config(LLAMA_8B), ONE_DEVICE, "one", chip)
        return [planned.time(_rows_of(step)).seconds * 1e3 / step["step_ms"] for step in steps]

    assert len(steps) == 5
    found = ratios(read_calibration(Path("h100")))
    assert found == pytest.approx([1.0] * 5, abs=0.15), found
    assert min(ratios(read_chip("h100"))) < 0.6


def _rows_of(step: dict[str, Any]) -> ShardRows:
    before = 1024 if step["kind"] == "decode" else 0
    return ShardRows(step["rows"], step["tokens_a_row"], before)


def test_a_name_that_is_no_file_is_told_what_is_shipped() -> None:
    with pytest.raises(ParameterError, match=r"cannot be read: No such file or directory; give a file, or one of h100"):
        read_calibration(Path("h200"))
