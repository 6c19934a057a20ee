"""Builds the wheel, installs it into an empty environment without constraints, as a user does, and has `generate` and
`serve` give a first answer there, outside of the checkout: `python scripts/check_wheel.py PYTHON...`.

Each PYTHON is an interpreter that the environment is made of. Packages come from the index that pip or uv is set up
for. Needs nothing but Python; where there is a C++ compiler, native kernels must be in the wheel and be used.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from email.parser import Parser
from pathlib import Path
from urllib.request import Request, urlopen
from zipfile import ZipFile

_REPOSITORY = Path(__file__).resolve().parents[1]
_INSTALL_SECONDS, _START_SECONDS, _ANSWER_SECONDS, _END_SECONDS = 900, 600, 120, 60
_TAKEN_OUT = ("PYTHONPATH", "PIP_CONSTRAINT", "UV_CONSTRAINT", "VIRTUAL_ENV", "XLA_FLAGS")


def main(interpreters: Sequence[str]) -> int:
    if not interpreters:
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build(folder / "dist", interpreters[0])
        for number, interpreter in enumerate(interpreters):
            place = folder / str(number)
            place.mkdir()
            check(wheel, interpreter, place)
    return 0


def build(folder: Path, interpreter: str) -> Path:
    """The wheel of this checkout; its metadata is whole."""
    if _has_uv():
        _run(["uv", "build", "--quiet", "--wheel", "--python", interpreter, "--out-dir", str(folder), str(_REPOSITORY)])
    else:
        _run([interpreter, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(_REPOSITORY)])
    (wheel,) = folder.glob("*.whl")
    with ZipFile(wheel) as archive:
        (file,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(file).decode())
    for field in ("Author", "Classifier", "Description-Content-Type", "License-Expression", "Requires-Python"):
        if metadata[field] is None:
            raise SystemExit(f"{wheel.name} has no {field}")
    if _has_native(wheel) != any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise SystemExit(f"{wheel.name} has {'' if _has_native(wheel) else 'no '}native kernels")
    print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB")
    return wheel


def check(wheel: Path, interpreter: str, place: Path) -> None:
    """Raises where it cannot be installed, or gives no answer. place: an empty folder to do it in."""
    venv = place / "venv"
    if _has_uv():
        _run(["uv", "venv", "--quiet", "--python", interpreter, str(venv)])
        _run(["uv", "pip", "install", "--quiet", "--python", str(venv / "bin/python"), str(wheel)])
    else:
        _run([interpreter, "-m", "venv", str(venv)])
        _run([str(venv / "bin/python"), "-m", "pip", "install", "--quiet", str(wheel)])
    told = "import jax, sys; print('Python', sys.version.split()[0], 'jax', jax.__version__)"
    print(_run([str(venv / "bin/python"), "-c", told], place).strip(), flush=True)
    report = json.loads(_run([str(venv / "bin/jaxinfer"), "env", "--json"], place))
    print("native:", native := report["attention_backends"]["native"], flush=True)
    if native.startswith("usable") != _has_native(wheel):
        raise SystemExit(f"native kernels are {'' if _has_native(wheel) else 'not '}in {wheel.name}")
    command = [str(venv / "bin/jaxinfer"), "generate", "--prompt", "Once upon a time", "--max-tokens", "8"]
    print("generate:", _run([*command, "--temperature", "0"], place, _START_SECONDS).strip()[:200], flush=True)
    print("serve:", served_answer(venv / "bin/jaxinfer", place)[:200], flush=True)


def served_answer(program: Path, place: Path) -> str:
    """Return what a server of the demo model says."""
    command = [str(program), "serve", "demo", "--port", "0", "--compile", "lazy"]
    with subprocess.Popen(command, cwd=place, env=_environment(place), stdout=subprocess.PIPE, text=True) as server:
        signal.signal(signal.SIGALRM, lambda *_: server.kill())  # its output then ends
        signal.alarm(_START_SECONDS)
        try:
            return _ask(_address(server))
        finally:
            signal.alarm(_END_SECONDS)
            server.terminate()
            server.wait()
            signal.alarm(0)


def _address(server: subprocess.Popen[str]) -> str:
    """The line to try, which comes when the server is ready, has it."""
    for line in server.stdout or ():
        if found := re.search(r"curl (http://\S+?)/v1/", line):
            return found[1]
    raise SystemExit("the server ended, or was not ready in time")


def _ask(address: str) -> str:
    body = {"model": "demo", "messages": [{"role": "user", "content": "What is 3 plus 4?"}], "max_tokens": 16}
    request = Request(f"{address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=_ANSWER_SECONDS) as response:
        return json.load(response)["choices"][0]["message"]["content"]


def _has_native(wheel: Path) -> bool:
    """Return whether the wheel has them; then it must be for one platform."""
    with ZipFile(wheel) as archive:
        found = "jaxinfer_kernels/cpu/native.so" in archive.namelist()
    if found == wheel.name.endswith("-any.whl"):
        raise SystemExit(f"{wheel.name} has another platform than its contents")
    return found


def _has_uv() -> bool:
    uv = shutil.which("uv")
    return uv is not None and subprocess.run([uv, "--version"], capture_output=True).returncode == 0


def _run(command: Sequence[str], place: Path | None = None, seconds: float = _INSTALL_SECONDS) -> str:
    done = subprocess.run(
        command, cwd=place, env=_environment(place), stdout=subprocess.PIPE, text=True, timeout=seconds, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {done.returncode}")
    return done.stdout


def _environment(place: Path | None) -> dict[str, str]:
    """No packages but the installed ones, no JAX flags of the tests, and no programs that earlier runs kept."""
    kept = {name: value for name, value in os.environ.items() if name not in _TAKEN_OUT}
    return kept if place is None else {**kept, "XDG_CACHE_HOME": str(place / "cache"), "JAX_PLATFORMS": "cpu"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
