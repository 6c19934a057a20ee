"""Builds the library of native kernels, where a C++ compiler is found: `python build.py` brings it up to date.

The library has the kernels of every set of instructions, and takes when it is loaded those of the processor: nothing of
the machine that builds it goes into it. Nothing outside of Python's own library is imported.

`python build.py --ahead` compiles what needs no headers of XLA, so what is left once jaxlib is installed takes seconds.
`python build.py --sanitised FILE` builds a library that checks its own memory. To test with it:

    export JAXINFER_NATIVE_LIBRARY=FILE ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1
    LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)" \
        python -m pytest tests/kernels/test_native_[!b]*.py
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
SOURCES = HERE / "src"
LIBRARY = HERE / "native.so"
STAMP = HERE / "native.digest"
"""File with the digest of the sources that the library was built of, and the version of XLA's interface in its
headers."""
AHEAD = HERE / "ahead"
"""Folder of what was compiled before there were headers."""

_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden")
_SANITISED = ("-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g", "-O1")
_TOLD_LINES = 20
"""Most lines of a failing compiler's errors that are shown."""


class Unit(NamedTuple):
    """An object file: its name, source, flags beside those of all, and whether it includes XLA's headers."""

    name: str
    source: str
    flags: tuple[str, ...] = ()
    has_headers: bool = False


def _variant(name: str, *flags: str) -> Unit:
    return Unit(name, "variant.cc", (*flags, f"-DJAXINFER_VARIANT={name}"))


_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512")
_CALLS = (Unit("calls", "calls.cc", has_headers=True), Unit("attention_call", "attention_call.cc", has_headers=True))
UNITS = {
    "x86_64": (
        _variant("avx512", *_AVX512),  # the slowest first
        _variant("avx2", "-mavx2", "-mfma"),
        _variant("plain", "-O1"),  # for processors of before 2013: quickly compiled
        Unit("short_products", "short_products.cc", (*_AVX512, "-mavx512bf16", "-mavx512vnni")),
        *_CALLS,
    ),
    "aarch64": (_variant("plain"), *_CALLS),  # NEON is part of every aarch64
}
"""Object files of the library, by processor."""


class BuildError(Exception):
    """Why there is no library; the message may have a compiler's."""


def find_compiler() -> str:
    """Return the C++ compiler to use: CXX, or the first on PATH. Raises BuildError if there is none."""
    named = os.environ.get("CXX")
    if found := next(filter(None, map(shutil.which, [named] if named else ["c++", "g++", "clang++"])), None):
        return found
    if named:
        raise BuildError(f"CXX={named} is not found")
    raise BuildError("no C++ compiler was found: install one, such as g++, or name one in CXX")


def find_headers() -> Path:
    """Return the folder of XLA's headers, which are part of jaxlib. Raises BuildError if that is not installed."""
    found = importlib.util.find_spec("jaxlib")
    if found and found.origin and (folder := Path(found.origin).parent / "include").is_dir():
        return folder
    raise BuildError("jaxlib, which has XLA's headers, is not installed")


def machine_of(compiler: str) -> str:
    """Return the processor that the compiler compiles for. Raises BuildError if there are no kernels for it."""
    target = _run([compiler, "-dumpmachine"]).strip()
    machine = target.partition("-")[0]
    if machine not in UNITS or "linux" not in target:
        raise BuildError(f"there are no native kernels for {target}: {' and '.join(UNITS)} have some, on Linux")
    return machine


def obstacle() -> str | None:
    """Return why there are no kernels to build here, whether or not headers are installed; None where there are."""
    try:
        machine_of(find_compiler())
    except BuildError as error:
        return str(error)
    return None


def digest() -> str:
    """Return the digest of all that the library is built of."""
    files = sorted([*SOURCES.glob("*.cc"), *SOURCES.glob("*.h"), Path(__file__)])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def api_version(headers: Path) -> tuple[int, int]:
    """Return the version of XLA's interface. XLA takes a library of its own version or an older one, and no newer."""
    text = (headers / "xla/ffi/api/c_api.h").read_text()
    major, minor = (re.findall(rf"^#define XLA_FFI_API_{part} (\d+)$", text, re.M)[0] for part in ("MAJOR", "MINOR"))
    return int(major), int(minor)


def staleness() -> str | None:
    """Return why the library is to be built, with the installed jaxlib if there is one; None if it is not."""
    if not LIBRARY.is_file() or not STAMP.is_file():
        return "not built"
    built_of, *version = STAMP.read_text().split() or [""]
    if built_of != digest() or len(version) != 2:
        return "older than their sources"
    try:
        newest = api_version(find_headers())
    except BuildError:
        return None
    return "built for a newer jaxlib" if tuple(map(int, version)) > newest else None


def build(headers: Path | None = None, flags: tuple[str, ...] = (), library: Path | None = None) -> None:
    """Build the library; on a second call with the same sources too.

    headers: the folder that has `xla/ffi/api`, by default that of the installed jaxlib. flags: further flags of the
    compiler, as of sanitisers. library: the file to write in place of that which is loaded. Raises BuildError where
    there is no compiler or no headers, and where it fails.
    """
    compiler, built_of = find_compiler(), digest()
    units = UNITS[machine_of(compiler)]
    headers = headers or find_headers()
    ahead, version = _ahead_of(compiler), api_version(headers)
    with tempfile.TemporaryDirectory() as work:
        kept = {} if flags else {unit: file for unit in units if (file := ahead / f"{unit.name}.o").is_file()}
        made = _compile(compiler, [unit for unit in units if unit not in kept], Path(work), headers, flags)
        linked = f"{work}/native.so"
        _run([compiler, "-shared", *flags, "-o", linked, *map(str, [*kept.values(), *made])])
        new = (library or LIBRARY).with_suffix(f".{os.getpid()}.new")
        shutil.copyfile(linked, new)
    new.replace(library or LIBRARY)  # a process that has the old one keeps it
    if library is None:
        stamp = STAMP.with_suffix(f".{os.getpid()}.new")
        stamp.write_text(" ".join(map(str, (built_of, *version))))
        stamp.replace(STAMP)
        shutil.rmtree(AHEAD, ignore_errors=True)


def build_ahead() -> None:
    """Compile what needs no headers, for a later `build`. Raises BuildError as that does."""
    compiler = find_compiler()
    units = [unit for unit in UNITS[machine_of(compiler)] if not unit.has_headers]
    folder = _ahead_of(compiler)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        for file in _compile(compiler, units, Path(work), None, ()):
            file.replace(folder / file.name)


def _ahead_of(compiler: str) -> Path:
    return AHEAD / hashlib.sha256(f"{digest()} {compiler}".encode()).hexdigest()[:16]


def _compile(
    compiler: str, units: Sequence[Unit], folder: Path, headers: Path | None, flags: tuple[str, ...]
) -> list[Path]:
    """Compile each into a file of the folder, several at a time."""
    found = ("-isystem", str(headers)) if headers else ()
    files = [folder / f"{unit.name}.o" for unit in units]
    commands = [
        [compiler, *_FLAGS, *unit.flags, *flags, *found, "-c", str(SOURCES / unit.source), "-o", str(file)]
        for unit, file in zip(units, files, strict=True)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_run, commands))
    return files


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]} does not run: {error}") from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()][:_TOLD_LINES]
        raise BuildError("\n".join([f"{Path(command[0]).name} failed", *said, "of", " ".join(command)]))
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    """Do as the module says; say why there is no library."""
    try:
        match arguments:
            case []:
                if how := staleness():
                    if not _ahead_of(find_compiler()).is_dir():
                        print(f"native kernels are {how}: compiling them takes up to half a minute", flush=True)
                    build()
            case ["--ahead"]:
                if staleness():
                    build_ahead()
            case ["--sanitised", file]:
                build(flags=_SANITISED, library=Path(file))
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except BuildError as error:
        print(f"no native kernels: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
