"""The import rules of jaxinfer/DESIGN.md, "Packages and imports", read off the source."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.imports import Module, chain_to, cycle, inside, read_tree, strays
from tests.material import REPOSITORY

pytestmark = pytest.mark.smoke

MODULES = {**read_tree(REPOSITORY, "jaxinfer"), **read_tree(REPOSITORY / "kernels", "jaxinfer_kernels")}

DEVICE_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax", "torch", "transformers")

NO_JAX = (
    "engine",
    "serving",
    "server",
    "rpc",
    "text",
    "metrics",
    "config",
    "config_tree",
    "other_values",
    "parameter",
    "sampling",
    "speculation",
    "structural_tag",
    "constraint",
    "grammar",
    "fair_queue",
    "heap",
    "errors",
    "console",
    "cli",
    "processes",
    "hosts",
    "build.asked",
    "build.described",
    "build.folders",
    "build.progress",
    "runner.platform.xla_options",
    "parallel.asked_mesh",
    "parallel.mesh_config",
    "parallel.mesh_file",
    "parallel.rules",
    "parallel.topology",
    "plan.chip",
    "plan.exchange",
    "plan.place",
    "model_config",
    "quantization.scheme",
    "quantization.made",
    "quantization.kv",
    "config_json",
    "checkpoint.formats",
)

BASE = ("errors", "version", "structural_tag", "constraint", "sampling", "speculation", "config", "folder_files")
WEIGHTS = ("checkpoint", "quantization", "parallel")
SCHEMES = tuple(f"quantization.{name}" for name in ("scheme", "made", "kv"))
SEAM = ("engine.client.base", "engine.types", "engine.stats.counters")

PROCESS_PARTS = ("config_tree", "signals", "metrics", "engine", "serving", "server", "rpc", "hosts")

ARROWS = {
    "errors": (),
    "version": (),
    "signals": (),
    "fair_queue": (),
    "heap": (),
    "folder_files": ("errors",),
    "parameter": ("errors",),
    "structural_tag": ("errors",),
    "speculation": ("errors",),
    "constraint": ("errors", "structural_tag"),
    "sampling": ("errors", "parameter", "constraint"),
    "config": ("errors", "speculation"),
    "config_json": ("errors",),
    "other_values": ("checkpoint.formats.refused",),
    "config_tree": ("errors", "other_values"),
    "metrics": (*BASE, "engine.types", "engine.stats.counters", "engine.series"),
    "text": (*BASE, "engine.types", "model_config.generation_config"),
    "grammar": (*BASE, "heap", "engine.constraint", "engine.step.shapes", "text.limited_process"),
    "engine": BASE,
    "engine.kv": (),
    "serving": (*BASE, "fair_queue", "metrics", "text", *SEAM),
    "server": (*BASE, "metrics", "text", "signals", "serving", *SEAM),
    "rpc": (*BASE, "text", "serving", "engine"),
    "hosts": (
        *BASE,
        "engine.device.call_stream",
        "engine.device.follower",
        "engine.device.runner",
        "engine.stats.hosts",
        "engine.watchdog",
        "rpc.channel",
    ),
    "model_config": (*BASE, *SCHEMES, "config_json", "checkpoint.formats"),
    "console": (*BASE, "text", "serving"),
    "processes": (*BASE, *PROCESS_PARTS, "console", "build", "checkpoint", "parallel"),
    "parallel": BASE,
    "quantization": (*BASE, "parallel"),
    "checkpoint": (*BASE, *SCHEMES, "config_json"),
    "layers": (*BASE, "parallel", "quantization", "model_config"),
    "models": (*BASE, *WEIGHTS, "model_config", "layers"),
    "convert": (*BASE, *WEIGHTS, "model_config", "models"),
    "plan": (*BASE, "parallel", "quantization", "model_config", "layers", "models", "engine", "runner", "build.sized"),
    "runner": (*BASE, "heap", "quantization", "parallel", "model_config", "layers", "models", "engine"),
}
"""What each package may import; `engine.kv` knows no sequence and no step. Composers put the parts together and may
import any."""

COMPOSERS = ("cli", "llm", "build")
KERNEL_USERS = ("runner", "models", "layers", "quantization", "plan")


def parts() -> set[str]:
    """First level of the package: `jaxinfer.engine.kv.radix` belongs to the part `engine`."""
    return {name.split(".")[1] for name in MODULES if name.startswith("jaxinfer.")}


def within(*names: str) -> list[str]:
    return [f"jaxinfer.{name}" for name in names]


def test_every_part_has_its_arrows():
    assert parts() <= {*ARROWS, *COMPOSERS, "__main__"}


@pytest.mark.parametrize("part", NO_JAX)
def test_no_jax_is_reached(part: str):
    assert any(inside(name, within(part)) for name in MODULES)
    for name in MODULES:
        if inside(name, within(part)):
            chain = chain_to(MODULES, name, DEVICE_LIBRARIES)
            assert chain is None, " -> ".join(chain or [])


@pytest.mark.parametrize("part", ARROWS)
def test_arrows_point_one_way(part: str):
    known = [*within(*parts(), *ARROWS, *COMPOSERS), "jaxinfer_kernels"]
    kernels = ["jaxinfer_kernels"] if part in KERNEL_USERS else []
    assert strays(MODULES, f"jaxinfer.{part}", known, [*within(*ARROWS[part]), *kernels]) == []


def test_what_serves_requests_knows_no_protocol():
    """HTTP and gRPC sit on top of it, and neither on the other."""
    for name in MODULES:
        if inside(name, within("serving")):
            chain = chain_to(MODULES, name, ("aiohttp", "grpc"))
            assert chain is None, " -> ".join(chain or [])


def test_no_module_imports_itself_by_way_of_others():
    assert " -> ".join(cycle(MODULES)) == ""


@pytest.mark.parametrize(
    "package",
    [
        "jaxinfer",
        *within("engine", "serving", "runner", "rpc", "text", "server", "models", "layers", "plan", "processes"),
        *within("hosts", "build", "checkpoint", "model_config"),
    ],
)
def test_no_part_of_a_package_imports_itself_by_way_of_others(package: str):
    """Its folders count as one each, its files by themselves."""
    depth = package.count(".") + 2
    units: dict[str, Module] = {}
    for name, module in MODULES.items():
        if name.startswith(f"{package}."):
            unit = ".".join(name.split(".")[:depth])
            known = units.get(unit, Module(unit, frozenset(), frozenset(), frozenset()))
            targets = {".".join(target.split(".")[:depth]) for target in module.typed}
            units[unit] = known._replace(typed=known.typed | targets)
    assert " -> ".join(cycle(units)) == ""


def test_kernels_know_nothing_of_the_engine():
    assert strays(MODULES, "jaxinfer_kernels", ["jaxinfer"], []) == []


def test_the_host_side_runs_without_jax():
    """The rule above, by running it: what third parties import counts as well."""
    host = [name for name in MODULES if inside(name, within(*NO_JAX)) and not name.endswith("__main__")]
    code = f"import importlib, sys\nfor name in {host!r}: importlib.import_module(name)\n"
    code += f"print([name for name in {DEVICE_LIBRARIES!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (result.stdout.strip(), result.returncode) == ("[]", 0), result.stderr


def plant(root: Path, files: dict[str, str]) -> None:
    """Writes a package for the rules to be broken in."""
    for name, source in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)


def test_a_chain_to_jax_is_found_through_packages_and_relative_imports(tmp_path: Path):
    files = {
        "p/__init__.py": "",
        "p/host/__init__.py": "",
        "p/host/a.py": "from p import middle",
        "p/middle/__init__.py": "from .deep import x",
        "p/middle/deep.py": "try:\n    import jax.numpy as jnp\nexcept ImportError:\n    pass",
    }
    plant(tmp_path, files)
    chain = chain_to(read_tree(tmp_path, "p"), "p.host.a", ["jax"])
    assert chain == ["p.host.a", "p.middle", "p.middle.deep", "jax"]


def test_a_parent_package_counts(tmp_path: Path):
    plant(tmp_path, {"p/__init__.py": "import jax", "p/a.py": ""})
    assert chain_to(read_tree(tmp_path, "p"), "p.a", ["jax"]) == ["p.a", "p", "jax"]


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    import jax",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import jax",
        "import typing\nif typing.TYPE_CHECKING:\n    import jax",
        "import jaxtyping",
    ],
)
def test_what_does_not_run_at_import_is_no_chain(tmp_path: Path, source: str):
    plant(tmp_path, {"p/__init__.py": source})
    assert chain_to(read_tree(tmp_path, "p"), "p", ["jax"]) is None


@pytest.mark.parametrize(
    "back",
    [
        "from p import a",
        "from p.a import x",
        "def f():\n    from .a import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import x",
    ],
)
def test_a_circle_is_found_whenever_it_is_imported(tmp_path: Path, back: str):
    files = {"p/__init__.py": "", "p/a.py": "from p.q import b", "p/q/__init__.py": "", "p/q/b.py": "from p import c"}
    plant(tmp_path, {**files, "p/c.py": ""})
    assert cycle(read_tree(tmp_path, "p")) == []
    plant(tmp_path, {"p/c.py": back})
    assert set(cycle(read_tree(tmp_path, "p"))) == {"p.a", "p.q.b", "p.c"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from p.engine import core", ["p.server imports p.engine.core"]),
        ("import p.engine.core", ["p.server imports p.engine.core"]),
        ("def f():\n    from .engine import core", ["p.server imports p.engine.core"]),
        ("from p.engine.client import Client", []),
        ("from p.engine import client", []),
        ("from p import engine", ["p.server imports p.engine"]),
    ],
)
def test_an_arrow_the_wrong_way_is_found(tmp_path: Path, source: str, expected: list[str]):
    plant(tmp_path, {"p/__init__.py": "", "p/server.py": source, "p/engine/__init__.py": "", "p/engine/core.py": ""})
    assert strays(read_tree(tmp_path, "p"), "p.server", ["p.engine"], ["p.engine.client"]) == expected
