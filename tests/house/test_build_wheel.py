"""scripts/build_wheel.py: what a wheel has, and its tag. Hatchling itself is a stand-in, as no environment has it."""

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class Hook:
    """What hatchling gives a hook."""

    def __init__(self) -> None:
        self.root, self.warnings = "", list[str]()
        self.app = SimpleNamespace(display_warning=self.warnings.append)
        self.metadata = SimpleNamespace(core=SimpleNamespace(dependencies=["jax>=0.10.2", "flax>=0.12.8"]))

    def __class_getitem__(cls, config: type) -> type:
        return cls


class Native:
    """What a hook asks of build.py."""

    class BuildError(Exception):
        pass

    def __init__(self, folder: Path) -> None:
        self.LIBRARY, self.STAMP = folder / "native.so", folder / "native.digest"
        self.error = ""
        self.built = 0

    def staleness(self) -> str | None:
        return None if self.LIBRARY.exists() else "not built"

    def obstacle(self) -> str | None:
        return self.error or None

    def find_compiler(self) -> str:
        if self.error:
            raise self.BuildError(self.error)
        return "c++"

    def machine_of(self, compiler: str) -> str:
        return "x86_64"

    def build(self) -> None:
        self.find_compiler()
        self.built += 1
        self.LIBRARY.write_bytes(b"ELF\0GLIBC_2.2.5\0GLIBC_2.14\0GLIBCXX_3.4.29\0")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    stand_in: Any = ModuleType("hatchling.builders.hooks.plugin.interface")
    stand_in.BuildHookInterface = Hook
    monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    monkeypatch.delitem(sys.modules, "build_wheel", raising=False)
    monkeypatch.delenv("JAXINFER_BUILD_NATIVE", raising=False)
    return importlib.import_module("build_wheel")


@pytest.fixture
def native(module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Native:
    found = Native(tmp_path)
    monkeypatch.setattr(module, "_load", lambda root: found)
    return found


def initialized(module: ModuleType, version: str = "standard") -> tuple[dict[str, Any], list[str]]:
    """What is known of the wheel, and the warnings."""
    data: dict[str, Any] = {"artifacts": []}
    hook = module.NativeKernels()
    hook.initialize(version, data)
    return data, hook.warnings


def test_a_wheel_has_the_library_and_its_platform(module: ModuleType, native: Native) -> None:
    folder = "/kernels/jaxinfer_kernels/cpu"
    data = {
        "artifacts": [f"{folder}/native.so", f"{folder}/native.digest"],
        "pure_python": False,
        "tag": "py3-none-manylinux_2_34_x86_64",
    }
    assert initialized(module) == (data, [])
    assert initialized(module) == (data, [])
    assert native.built == 1


def test_an_editable_one_builds_where_the_sources_are(module: ModuleType, native: Native) -> None:
    assert initialized(module, "editable") == ({"artifacts": []}, [])
    assert native.built == 1


def test_without_a_compiler_it_is_for_every_platform(module: ModuleType, native: Native) -> None:
    native.error = "no C++ compiler was found"
    assert module.NativeKernels().dependencies() == []
    data, warnings = initialized(module)
    assert data == {"artifacts": []}
    assert warnings == ["no native kernels, which make CPUs faster: no C++ compiler was found"]


def test_headers_are_those_of_the_oldest_jaxlib(module: ModuleType, native: Native) -> None:
    assert module.NativeKernels().dependencies()[0] == "jaxlib==0.10.2; python_version < '3.15'"


def test_it_can_be_left_out(module: ModuleType, native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXINFER_BUILD_NATIVE", "0")
    assert module.NativeKernels().dependencies() == []
    assert initialized(module) == ({"artifacts": []}, [])
    assert native.built == 0


@pytest.mark.parametrize(
    ("symbols", "platform"),
    [
        ("GLIBC_2.2.5 GLIBC_2.14 GLIBCXX_3.4.19", "manylinux_2_17_aarch64"),
        ("GLIBC_2.32 GLIBC_2.4 GLIBCXX_3.4.24", "manylinux_2_32_aarch64"),
        ("GLIBC_2.17 GLIBCXX_3.4.30", "manylinux_2_35_aarch64"),
        ("GLIBC_2.17 GLIBCXX_3.4.99", "linux_aarch64"),
        ("", "linux_aarch64"),
    ],
)
def test_the_platform_has_all_symbols(module: ModuleType, symbols: str, platform: str) -> None:
    library = b"ELF" + b"".join(b"\0" + name.encode() for name in symbols.split()) + b"\0"
    assert module.platform_of(library, "aarch64") == platform


def test_build_py_is_loaded_without_the_package(module: ModuleType) -> None:
    root = Path(module.__file__ or "").parents[1]
    assert root / "kernels/jaxinfer_kernels/cpu/src" == module._load(root).SOURCES
