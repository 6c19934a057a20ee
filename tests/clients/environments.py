"""Makes the environments of the clients, below a cache folder, and keeps them while their pins are the same."""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.clients.manifest import Client, Environment

SECONDS_TO_INSTALL = 600


class UnavailableError(Exception):
    """An environment that cannot be made here, with the reason."""


def cache_folder() -> Path:
    """Where the environments are kept: each has a folder, which may be deleted at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxinfer" / "clients"


def ensure(environment: Environment, root: Path) -> Path:
    """The folder of an environment, which is made where there is none with these pins.

    Raises:
        UnavailableError: a program is missing, or the packages cannot be fetched.
    """
    folder = root / f"{environment.name}-{_fingerprint(environment)}"
    whole = folder / "whole"
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / f"{folder.name}.lock"):
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)
            _INSTALLERS[environment.kind](environment, folder)
            whole.touch()
    return folder


def command(client: Client, folder: Path, scratch: Path) -> list[str]:
    """What runs the client's script with its environment; `scratch` is an empty folder."""
    if client.environment.kind == "python":
        return [str(_python(folder)), str(client.script)]
    # Node looks for packages beside the script.
    for script in client.script.parent.glob("*.mjs"):
        shutil.copy(script, scratch)
    (scratch / "node_modules").symlink_to(folder / "node_modules")
    return ["node", str(scratch / client.script.name)]


def plain_variables() -> dict[str, str]:
    """The environment variables of a user who knows nothing of this repository."""
    own = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "OPENAI_", "ANTHROPIC_", "LITELLM_", "LLM_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return {**kept, "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}


def _fingerprint(environment: Environment) -> str:
    parts = (*environment, platform.python_version() if environment.kind == "python" else "")
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two test runs do not make the same environment at once."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _install_python(environment: Environment, folder: Path) -> None:
    constraints = folder.with_suffix(".constraints")
    constraints.write_text(environment.constraints)
    pins = ["--constraint", str(constraints), *environment.requirements]
    if environment.installer == "any" and _runs("uv"):
        _run("uv", "venv", "--quiet", "--python", sys.executable, str(folder))
        _run("uv", "pip", "install", "--quiet", "--python", str(_python(folder)), *pins)
    else:
        _run(sys.executable, "-m", "venv", str(folder))
        # Few of the modules are ever imported: those are compiled when they are.
        quiet = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-compile")
        _run(str(_python(folder)), "-m", "pip", "install", *quiet, *pins)


def _install_node(environment: Environment, folder: Path) -> None:
    for program in ("node", "npm"):
        if not _runs(program):
            raise UnavailableError(f"{program} is not installed")
    folder.mkdir()
    (folder / "package.json").write_text('{"private": true}\n')
    flags = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")
    _run("npm", "install", *flags, *environment.requirements, cwd=folder)


_INSTALLERS = {"python": _install_python, "node": _install_node}


def _runs(program: str) -> bool:
    """Whether a program is there and works: a name on PATH may be a shim for nothing."""
    if shutil.which(program) is None:
        return False
    return subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0


def _run(*arguments: str, cwd: Path | None = None) -> None:
    line = " ".join(arguments)
    try:
        done = subprocess.run(
            arguments, cwd=cwd, env=plain_variables(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=SECONDS_TO_INSTALL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"`{line}` takes longer than {SECONDS_TO_INSTALL} s") from error
    if done.returncode:
        raise UnavailableError(f"`{line}` ends with status {done.returncode}: {done.stdout[-2000:].strip()}")
