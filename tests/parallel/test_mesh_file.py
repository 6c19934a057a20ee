"""Mesh files: what is shipped, what is read, and that whatever is wrong in one is told by file and key."""

import contextlib
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.errors import ParameterError
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.mesh_file import KEYS, LOGICAL_AXES, MAX_BYTES, mesh_text, read_mesh, shipped_meshes
from jaxinfer.parallel.rules import AXES, DEFAULT_RULES
from tests.material import REPOSITORY

WHOLE_EXPERTS = DEFAULT_RULES.with_whole_experts()
SHIPPED = {
    "single": ((1, 1, 1, 1), 1),
    "tp2": ((1, 1, 1, 2), 1),
    "tp4": ((1, 1, 1, 4), 1),
    "tp8": ((1, 1, 1, 8), 1),
    "ep8": ((1, 1, 1, 8), 1),
    "data2-tp4": ((2, 1, 1, 4), 1),
    "pp2": ((1, 2, 1, 1), 1),
    "pp2-tp4": ((1, 2, 1, 4), 1),
    "v5e-8": ((1, 1, 1, 8), 1),
    "v6e-8": ((1, 1, 1, 8), 1),
    "v7x-8": ((1, 1, 1, 8), 1),
    "h200-8": ((1, 1, 1, 8), 1),
    "v6e-16": ((1, 1, 1, 16), 4),
    "v6e-16-pp2": ((1, 2, 1, 8), 4),
    "v7x-16-pp2": ((1, 2, 1, 8), 2),
    "h200-16": ((1, 2, 1, 8), 2),
}
"""Devices along the axes, and hosts."""


def test_shipped_files():
    assert {name: (read_mesh(name).shape, read_mesh(name).hosts) for name in shipped_meshes()} == SHIPPED
    assert read_mesh("tp2") == read_mesh(str(REPOSITORY / "configs" / "meshes" / "tp2.yaml"))
    assert read_mesh("tp4").rules == DEFAULT_RULES
    rules = read_mesh("ep8").rules
    assert (rules.expert, rules.expert_mlp, rules.mlp) == (("tensor",), (), ("tensor",))


def test_the_table_of_shipped_files_is_complete():
    table = (REPOSITORY / "configs" / "meshes" / "README.md").read_text()
    assert [name for name in SHIPPED if f"| `{name}` |" not in table] == []


def test_names_resolve_in_an_installed_package(tmp_path: Path):
    """What pyproject.toml puts into a wheel, put where a wheel would."""
    wheel = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for package in wheel["packages"]:
        left_out = shutil.ignore_patterns("*.safetensors", "__pycache__")
        shutil.copytree(REPOSITORY / package, tmp_path / Path(package).name, ignore=left_out)
    for source, target in wheel["force-include"].items():
        shutil.copytree(REPOSITORY / source, tmp_path / target)
    program = "from jaxinfer.parallel.mesh_file import *; print(*shipped_meshes()); print(read_mesh('tp2'), KEYS)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": "."}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names, read = done.stdout.splitlines()
    assert sorted(names.split()) == sorted(SHIPPED)
    assert read.startswith("tensor=2")


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "my.yaml"
    file.write_text(text)
    return file


def test_a_file_with_everything(tmp_path: Path):
    text = """
    topology: v7x:2x2x2
    axes: {tensor: 4, expert: 2, data: 2}
    rules: {expert: [expert, tensor], expert_mlp: null, mlp: [], vocab: [data, tensor]}
    """
    found = read_mesh(str(written(tmp_path, text)))
    assert (found.shape, found.size, found.hosts) == ((2, 1, 2, 4), 16, 2)
    assert str(found) == "data=2, expert=2, tensor=4"
    assert (found.rules.expert, found.rules.expert_mlp, found.rules.mlp) == (("expert", "tensor"), (), ())
    assert (found.rules.vocab, found.rules.kv_heads) == (("data", "tensor"), ("tensor",))


@pytest.mark.parametrize("name", [*SHIPPED, "data2 with whole experts"])
def test_a_mesh_as_a_file(name: str, tmp_path: Path):
    """Read again it is the same mesh: devices along each axis, chips, and parts of every logical axis."""
    mesh = read_mesh(name) if name in SHIPPED else MeshConfig({"data": 2, "tensor": 2}, WHOLE_EXPERTS)
    (tmp_path / "mesh.yaml").write_text(mesh_text(mesh))
    again = read_mesh(str(tmp_path / "mesh.yaml"))
    assert (again.shape, again.topology) == (mesh.shape, mesh.topology)
    assert [again.shards(axis) for axis in LOGICAL_AXES] == [mesh.shards(axis) for axis in LOGICAL_AXES]


def test_an_empty_file_is_one_device(tmp_path: Path):
    assert read_mesh(str(written(tmp_path, "# nothing yet\n"))) == MeshConfig()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("axis: {tensor: 2}", "'axis' is no key; there are axes, rules, topology"),
        ("axes: {model: 2}", "axes: 'model' is no axis; there are data, stage, expert, tensor"),
        ("axes: {3: 2}", "axes: 3 is no axis"),
        ("axes: [tensor]", "axes: must be a mapping of axes to sizes, not ['tensor']"),
        ("axes: {tensor: 0}", "axes.tensor: 0 must be a whole number from 1 to 65,536"),
        ("axes: {tensor: -2}", "axes.tensor: -2 must be"),
        ("axes: {tensor: true}", "axes.tensor: True must be"),
        ("axes: {tensor: 2.0}", "axes.tensor: 2.0 must be"),
        ("axes: {tensor: '2'}", "axes.tensor: '2' must be"),
        ("axes: {tensor: null}", "axes.tensor: None must be"),
        ("axes: {tensor: 65537}", "axes.tensor: 65537 must be"),
        ("rules: {heads: null}", "rules: 'heads' is no logical axis; there are layers, vocab, embed, kv_heads"),
        ("rules: tensor", "rules: must be a mapping of logical axes to mesh axes, not 'tensor'"),
        ("{axes: {tensor: 2}, rules: {mlp: model}}", "rules.mlp: 'model' is no axis; a rule names one of data, stage"),
        ("{axes: {tensor: 2}, rules: {mlp: {tensor: 2}}}", "rules.mlp: {'tensor': 2} is no axis"),
        ("{axes: {tensor: 2}, rules: {mlp: [tensor, [expert]]}}", "rules.mlp: ['expert'] is no axis"),
        ("{axes: {tensor: 2}, rules: {expert: stage}}", "rules.expert: stage is not among the axes of this mesh"),
        ("rules: {mlp: tensor}", "rules.mlp: tensor is not among the axes of this mesh, none"),
        ("{axes: {tensor: 2}, rules: {mlp: [tensor, tensor]}}", "rules.mlp: ['tensor', 'tensor'] names an axis twice"),
        (
            "{axes: {tensor: 2}, rules: {embed: tensor}}",
            "rules: kv_heads and embed are axes of one array (layers, kv_heads, q_per_kv, head_dim, embed); one "
            "of them can be split over tensor",
        ),
        ("{axes: {expert: 2}, rules: {expert_mlp: expert}}", "rules: expert and expert_mlp are axes of one array"),
        ("{axes: {tensor: 4}, topology: 'v6e:2x4'}", "axes: tensor=4 has 4 devices, v6e:2x4 8"),
        ("{axes: {tensor: 4}, topology: 'v7x:2x2x1'}", "axes: tensor=4 has 4 devices, v7x:2x2x1 8"),
        ("topology: v9:2x4", "topology: 'v9:2x4' must be TARGET:SIZES as v6e:2x4, with one of v5e, v6e, v5p, v7x"),
        ("topology: 8", "topology: 8 must be TARGET:SIZES"),
        ("topology: v6e", "topology: 'v6e' must be written as v6e:2x4"),
        ("topology: cpu:-8", "topology: 'cpu:-8' must be written as cpu:8"),
        ("topology: v6e:2x3", "topology: v6e:2x3 is no topology of v6e; there are 1x1, 2x2, 2x4, 4x4"),
        ("topology: h200:8", "topology: h200:8 is no topology of h200; there are h200:1x1x8"),
        ("topology: h200:1x1x16", "topology: h200:1x1x16 has too many chips: 8 at most"),
        ("topology: v7x:3x1x1", "topology: v7x:3x1x1 must have a multiple of 4 chips"),
        ("[tensor, 2]", "must hold a mapping, not ['tensor', 2]"),
        ("axes: {tensor: 2, tensor: 4}", "the key 'tensor' stands twice"),
        ("axes: {tensor: 2}\naxes: {tensor: 4}", "the key 'axes' stands twice"),
        ("axes: {tensor: 2", "is not valid YAML: while parsing a flow mapping"),
        ("axes: !!int ''", "is not valid YAML"),
        ("a: &a [*a]", "'a' is no key"),
        ("axes: &a {tensor: *a}", "axes.tensor: {'tensor': {"),
        ("[" * 5000, "is not valid YAML"),
        ("#" * (MAX_BYTES + 1), f"at most {MAX_BYTES} are read"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(text: str, told: str, tmp_path: Path):
    file = written(tmp_path, text)
    with pytest.raises(ParameterError) as error:
        read_mesh(str(file))
    assert error.value.param == "mesh"
    assert told in error.value.message
    assert str(file) in error.value.message
    assert len(error.value.message) < 700


def test_names_and_paths_that_lead_nowhere(tmp_path: Path):
    for name in ("tp3", "tp3.yaml", str(tmp_path), f"{tmp_path}/", "~nobody-has-this-name/a.yaml", "a\0.yaml"):
        with pytest.raises(ParameterError, match=r"^mesh: ") as error:
            read_mesh(name)
        assert name.rstrip("/").replace("\0", "\\x00") in str(error.value)
    with pytest.raises(
        ParameterError, match=r"'tp3' is no mesh; give a file that ends in .yaml, or one of data2-tp4, "
    ):
        read_mesh("tp3")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff")
    with pytest.raises(ParameterError, match="is not UTF-8"):
        read_mesh(str(tmp_path / "bytes.yaml"))


words = st.sampled_from([*KEYS, *AXES, *LOGICAL_AXES, "cpu:8", "v6e:2x4", "v7x:2x2x1", "null", "x"])
scalars = words | st.integers() | st.floats() | st.booleans() | st.none() | st.text(max_size=5)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4), max_leaves=12
)
plausible = st.fixed_dictionaries(
    {},
    optional={
        "axes": st.dictionaries(st.sampled_from(AXES), st.integers(-1, 9) | scalars, max_size=4),
        "rules": st.dictionaries(st.sampled_from(LOGICAL_AXES), st.sampled_from(AXES) | values, max_size=4),
        "topology": st.from_regex(r"(v5e|v6e|v7x|h200|cpu):\d+(x\d+)*", fullmatch=True) | scalars,
    },
)


@pytest.mark.long
@given(
    st.one_of(values, plausible).map(repr) | st.text(max_size=60) | st.text("{}[]:,!&*<- \nax1'\"|>%@#?", max_size=40)
)
def test_no_text_does_more_than_be_refused(tmp_path_factory: pytest.TempPathFactory, text: str):
    """Python's literals of plain values are YAML, nearly all of them."""
    file = tmp_path_factory.getbasetemp() / "random.yaml"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    with contextlib.suppress(ParameterError):
        assert read_mesh(str(file)).size >= 1
