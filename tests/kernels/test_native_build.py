"""How the library of native kernels is built, with stand-ins for compilers, and why there is none."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jaxinfer_kernels.cpu import build
from jaxinfer_kernels.cpu.loading import library

COMPILER = """#!/usr/bin/env bash
[[ "$*" == -dumpmachine ]] && {{ echo {target}; exit; }}
echo "$*" >>"$(dirname "$0")/log"
{does}
while [[ "$1" != -o ]]; do shift; done
echo made >"$2"
"""
HEADER = "#define XLA_FFI_API_MAJOR 0\n#define XLA_FFI_API_MINOR {minor}\n"


class Place:
    """A folder with a copy of build.py's files, XLA's headers of a version, and a compiler."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.compiler = root, root / "compiler"
        (root / "src").mkdir()
        for unit in build.UNITS["x86_64"]:
            (root / "src" / unit.source).write_text("// one\n")
        for name, file in {
            "SOURCES": "src",
            "LIBRARY": "native.so",
            "STAMP": "native.digest",
            "AHEAD": "ahead",
        }.items():
            monkeypatch.setattr(build, name, root / file)
        monkeypatch.setattr(build, "find_headers", lambda: root / "include")
        monkeypatch.setenv("CXX", str(self.compiler))
        self.set_headers(3)
        self.set_compiler()

    def set_headers(self, minor: int) -> None:
        folder = self.root / "include/xla/ffi/api"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "c_api.h").write_text(HEADER.format(minor=minor))

    def set_compiler(self, does: str = "", target: str = "x86_64-linux-gnu") -> None:
        self.compiler.write_text(COMPILER.format(does=does, target=target))
        self.compiler.chmod(0o755)

    def compiled(self) -> list[str]:
        """Sources since the last call; `native.so` where all was linked."""
        log = self.root / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.write_text("")
        return sorted(Path(line.split(" -c ")[1].split()[0]).name if " -c " in line else "native.so" for line in lines)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


ALL = sorted([*(unit.source for unit in build.UNITS["x86_64"]), "native.so"])


def test_it_is_built_when_sources_change(place: Place) -> None:
    assert build.staleness() == "not built"
    assert build.main([]) == 0
    assert build.LIBRARY.read_text() == "made\n"
    assert place.compiled() == ALL
    assert build.main([]) == 0
    assert place.compiled() == []
    (place.root / "src/calls.cc").write_text("// two\n")
    assert build.staleness() == "older than their sources"
    assert build.main([]) == 0
    assert place.compiled() == ALL


def test_it_is_built_again_for_an_older_jaxlib_and_not_for_a_newer(place: Place) -> None:
    """XLA refuses a library that is newer than itself, and then has no CPU at all."""
    place.set_headers(5)
    build.build()
    place.set_headers(3)
    assert build.staleness() == "built for a newer jaxlib"
    build.build()
    assert build.staleness() is None
    place.set_headers(5)
    assert build.staleness() is None


def test_without_headers_all_else_is_compiled_ahead(place: Place) -> None:
    assert build.main(["--ahead"]) == 0
    assert place.compiled() == sorted(unit.source for unit in build.UNITS["x86_64"] if not unit.has_headers)
    assert build.main([]) == 0
    assert place.compiled() == sorted(
        [*(unit.source for unit in build.UNITS["x86_64"] if unit.has_headers), "native.so"]
    )
    assert not build.AHEAD.exists()


def test_what_was_compiled_ahead_of_other_sources_is_left(place: Place) -> None:
    assert build.main(["--ahead"]) == 0
    (place.root / "src/variant.cc").write_text("// two\n")
    place.compiled()
    assert build.main([]) == 0
    assert place.compiled() == ALL


def test_a_compilers_first_lines_are_told_and_the_old_library_stays(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    build.build()
    (place.root / "src/calls.cc").write_text("// two\n")
    place.set_compiler('for i in {1..50}; do echo "calls.cc:$i: no" >&2; done; exit 1')
    assert build.main([]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["no native kernels: compiler failed", "calls.cc:1: no"]
    assert len(lines) < 30
    assert build.LIBRARY.read_text() == "made\n"
    assert build.staleness() == "older than their sources"


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("", "no C++ compiler was found: install one, such as g++, or name one in CXX"),
        ("none++", "CXX=none++ is not found"),
    ],
)
def test_no_compiler(place: Place, named: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", named)
    monkeypatch.setenv("PATH", str(place.root / "src"))
    with pytest.raises(build.BuildError, match=re.escape(said)):
        build.build()
    assert build.obstacle()


@pytest.mark.parametrize("target", ["riscv64-linux-gnu", "arm64-apple-darwin23"])
def test_another_processor_or_system(place: Place, target: str) -> None:
    place.set_compiler(target=target)
    with pytest.raises(
        build.BuildError, match=f"no native kernels for {target}: x86_64 and aarch64 have some, on Linux"
    ):
        build.build()


def test_the_compiler_says_which_processor_it_is_for(place: Place) -> None:
    place.set_compiler(target="aarch64-unknown-linux-gnu")
    build.build()
    assert place.compiled() == sorted([*(unit.source for unit in build.UNITS["aarch64"]), "native.so"])


def test_no_jaxlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(build.BuildError, match="jaxlib, which has XLA's headers, is not installed"):
        build.find_headers()


@pytest.fixture
def unloaded() -> Iterator[None]:
    library.cache_clear()
    yield
    library.cache_clear()


@pytest.mark.usefixtures("unloaded")
def test_the_reason_has_the_remedy(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAXINFER_NATIVE_LIBRARY", raising=False)
    remedy = f"run `{sys.executable} {build.__file__}`, with a C++ compiler"
    assert library().reason == f"the native kernels are not built: {remedy}"
    build.build()
    library.cache_clear()
    assert library().reason.startswith("the native kernels cannot be loaded: ")  # it is text
    place.set_headers(2)
    library.cache_clear()
    assert library().reason == f"the native kernels are built for a newer jaxlib: {remedy}"


@pytest.mark.usefixtures("unloaded")
def test_a_library_that_is_named_and_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXINFER_NATIVE_LIBRARY", "none")
    assert library().reason == "native kernels are off: JAXINFER_NATIVE_LIBRARY=none"
    monkeypatch.setenv("JAXINFER_NATIVE_LIBRARY", "absent.so")
    library.cache_clear()
    assert library().reason == "JAXINFER_NATIVE_LIBRARY=absent.so is no file, so native kernels are off"


@pytest.mark.long
@pytest.mark.parametrize("compiler", ["g++", "clang++", "aarch64-linux-gnu-g++"])
def test_compilers_warn_of_nothing(compiler: str) -> None:
    """Of those that are installed."""
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    units = build.UNITS[build.machine_of(compiler)]
    for unit in units:
        flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-isystem", str(build.find_headers())]
        done = subprocess.run(
            [compiler, *flags, *unit.flags, str(build.SOURCES / unit.source)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[:4000]


@pytest.mark.long
@pytest.mark.parametrize(
    ("compiler", "instructions"),
    [("g++", ""), ("clang++", ""), ("aarch64-linux-gnu-g++", ""), ("g++", "avx2"), ("clang++", "avx2")],
)
def test_plain_kernels_equal_loops(compiler: str, instructions: str, tmp_path: Path) -> None:
    """Kernels of aarch64 run in an emulator. A row by itself has the bits that it has among others."""
    if instructions and instructions not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"this processor has no {instructions}")
    emulated = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"] if compiler.startswith("aarch64") else []
    for needed in (compiler, *emulated[:1]):
        if not shutil.which(needed):
            pytest.skip(f"{needed} is not installed")
    sources = [str(build.SOURCES / "variant.cc"), str(Path(__file__).parent / "native_loops.cc")]
    flags = ["-std=c++17", "-O3", "-DJAXINFER_VARIANT=plain", "-I", str(build.SOURCES)]
    flags += [f"-m{instructions}", "-mfma"] if instructions else []
    subprocess.run([compiler, *flags, *sources, "-o", str(tmp_path / "program")], check=True)
    done = subprocess.run([*emulated, str(tmp_path / "program")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("stamp", ["", "0123", "0123 0", "\n"])
def test_a_stamp_that_is_cut_off(place: Place, stamp: str) -> None:
    assert build.main([]) == 0
    build.STAMP.write_text(stamp)
    assert build.staleness() == "older than their sources"
    assert build.main([]) == 0
    assert build.staleness() is None
