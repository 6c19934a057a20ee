"""A start stops where a plug-in for an accelerator is installed and JAX runs on the CPU, unless the CPU is meant."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from jaxinfer.config import RunnerConfig
from jaxinfer.errors import ParameterError
from jaxinfer.runner.platform.device import check_device

REASON = "CUDA driver version is insufficient for CUDA runtime version"
CHECK = "from jaxinfer.runner.platform.device import *; limit_device({0!r}); check_device({0!r}); print('runs')"


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A folder with an installed plug-in for CUDA that does not load, and no other."""
    information = tmp_path / "some_cuda_plugin-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: some-cuda-plugin\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[jax_plugins]\nxla_cuda13 = some_cuda_plugin\n")
    (tmp_path / "some_cuda_plugin.py").write_text(f"def initialize():\n    raise RuntimeError({REASON!r})\n")
    return tmp_path


def run(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "XLA_FLAGS")}
    environment |= {"PYTHONPATH": str(folder), **variables}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=200)


def test_a_plugin_that_does_not_load_is_told_with_the_reason(plugin: Path):
    done = run(["-c", CHECK.format("auto")], plugin)
    assert "ParameterError: device: plug-in xla_cuda13" in done.stderr
    assert REASON in done.stderr
    assert "NVIDIA's driver 580 or newer" in done.stderr
    assert "give --device cpu if the CPU is meant" in done.stderr


HANDLED = "import logging; logging.basicConfig(format='root: %(message)s'); "


def test_the_programs_own_log_has_what_it_would_have_without(plugin: Path):
    said = run(["-c", HANDLED + "import jax; jax.devices()"], plugin).stderr
    lines = [line for line in said.splitlines() if line.startswith("root: ")]
    assert lines
    told = run(["-c", HANDLED + CHECK.format("auto")], plugin).stderr
    assert [line for line in told.splitlines() if line.startswith("root: ")] == lines


@pytest.mark.parametrize(("device", "variables"), [("cpu", {}), ("auto", {"JAX_PLATFORMS": "cpu"})])
def test_the_cpu_may_be_meant(plugin: Path, device: str, variables: dict[str, str]):
    assert run(["-c", CHECK.format(device)], plugin, **variables).stdout == "runs\n"


def test_an_extra_asks_for_an_accelerator(tmp_path: Path):
    done = run(["-c", CHECK.format("auto")], tmp_path, JAXINFER_EXTRAS="uvloop cuda12")
    assert "JAXINFER_EXTRAS=cuda12 is there, but JAX runs on cpu" in done.stderr


def test_the_platform_that_jax_is_told_to_use_must_work(tmp_path: Path):
    done = run(["-c", CHECK.format("auto")], tmp_path, JAX_PLATFORMS="cuda")
    assert "ParameterError: device: JAX finds none (JAX_PLATFORMS=cuda): " in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        ["-m", "jaxinfer", "serve", "demo", "--port", "0"],
        ["-m", "jaxinfer", "generate", "--prompt", "Hello"],
        ["-c", "from jaxinfer import LLM; LLM('demo')"],
    ],
    ids=["serve", "generate", "LLM"],
)
def test_commands_stop(plugin: Path, command: list[str]):
    done = run(command, plugin)
    assert done.returncode != 0
    assert REASON in done.stdout + done.stderr


def test_another_device_than_the_one_asked_for_is_refused():
    check_device("auto")
    check_device("cpu")
    with pytest.raises(ParameterError, match=r"gpu is asked for, but JAX runs on cpu: .*cuda"):
        check_device("gpu")


def test_vllms_name_of_a_gpu():
    assert RunnerConfig(device="cuda").device == "gpu"


@pytest.fixture
def platforms() -> Iterator[None]:
    before = jax.config.values["jax_platforms"]
    yield
    jax.config.update("jax_platforms", before)


@pytest.mark.usefixtures("platforms")
def test_the_cpu_may_be_the_first_of_several(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAXINFER_EXTRAS", "cuda13")
    for named in ("cpu", "cpu,cuda"):
        jax.config.update("jax_platforms", named)
        check_device("auto")
    jax.config.update("jax_platforms", "")
    with pytest.raises(ParameterError, match="JAXINFER_EXTRAS=cuda13 is there, but JAX runs on cpu"):
        check_device("auto")
