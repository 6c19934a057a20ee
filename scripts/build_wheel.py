"""Hatchling's hook for wheels: native kernels are built where a C++ compiler is found, else the wheel does without.

JAXINFER_BUILD_NATIVE=0 leaves them out, and so the download of XLA's headers.
"""

import importlib.util
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface  # pyright: ignore[reportMissingImports]

_FOLDER = "kernels/jaxinfer_kernels/cpu"
_GLIBCXX = ((19, 17), (24, 27), (25, 28), (28, 31), (29, 34), (30, 35), (32, 38), (33, 39))
"""Newest symbols of libstdc++, 3.4.x, that manylinux_2_y has."""


class NativeKernels(BuildHookInterface[Any]):
    """Adds the library to a wheel, whose tag then names the platform; for an editable one it stays in the sources."""

    def dependencies(self) -> list[str]:
        """Return what has XLA's headers. A library runs with the versions of XLA from that of its headers on."""
        native = _load(Path(self.root))
        if not _is_wanted() or native.obstacle():
            return []
        (oldest,) = (found[1] for name in self._requirements() if (found := re.fullmatch(r"jax>=([\d.]+)", name)))
        return [f"jaxlib=={oldest}; python_version < '3.15'", "jaxlib; python_version >= '3.15'"]

    def _requirements(self) -> list[str]:
        return self.metadata.core.dependencies

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library, if it is not that of these sources."""
        native = _load(Path(self.root))
        if not _is_wanted():
            return
        try:
            if native.staleness():
                native.build()
            if version == "editable":
                return
            machine = native.machine_of(native.find_compiler())
        except native.BuildError as error:
            self.app.display_warning(f"no native kernels, which make CPUs faster: {error}")
            return
        build_data["artifacts"] += [f"/{_FOLDER}/{file.name}" for file in (native.LIBRARY, native.STAMP)]
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_of(native.LIBRARY.read_bytes(), machine)}"


def _load(root: Path) -> ModuleType:
    """Import `build.py` without the package, which imports jax."""
    spec = importlib.util.spec_from_file_location("jaxinfer_native_build", root / _FOLDER / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _is_wanted() -> bool:
    return os.environ.get("JAXINFER_BUILD_NATIVE") != "0"


def platform_of(library: bytes, machine: str) -> str:
    """Return the tag of the oldest platform that has all symbols which a library needs, by their versions."""
    glibc, glibcxx = (_newest(library, name) for name in (rb"GLIBC_2\.", rb"GLIBCXX_3\.4\."))
    least = next((minor for newest, minor in _GLIBCXX if glibcxx <= newest), None)
    return f"manylinux_2_{max(glibc, least)}_{machine}" if glibc and least else f"linux_{machine}"


def _newest(library: bytes, name: bytes) -> int:
    return max((int(number) for number in re.findall(rb"\0" + name + rb"(\d+)", library)), default=0)
