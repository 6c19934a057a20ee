"""The environment that vLLM's tests run in: clients and pytest; neither vLLM nor torch nor jaxinfer."""

import shutil
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def make_environment(folder: Path) -> Path:
    """Its interpreter; installed anew when `requirements.txt` has changed."""
    python = folder / "bin" / "python"
    installed = folder / "requirements.txt"
    if not installed.exists() or installed.read_text() != REQUIREMENTS.read_text():
        shutil.rmtree(folder, ignore_errors=True)
        _install(folder, python)
        shutil.copy(REQUIREMENTS, installed)
    return python


def _install(folder: Path, python: Path) -> None:
    if shutil.which("uv"):
        _run("uv", "venv", "--quiet", "--python", sys.executable, str(folder))
        _run("uv", "pip", "install", "--quiet", "--python", str(python), "-r", str(REQUIREMENTS))
    else:
        _run(sys.executable, "-m", "venv", str(folder))
        _run(str(python), "-m", "pip", "install", "--quiet", "-r", str(REQUIREMENTS))


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
