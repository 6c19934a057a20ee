"""CI's step of native kernels with sanitisers fails where their library does not load: its tests would be skipped."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from jaxinfer_kernels.cpu.build import LIBRARY

from tests.material import REPOSITORY
from tests.native import needs_native

# Builds by a copy, passes all tests, and is Python otherwise.
STAND_IN = """#!/usr/bin/env bash
case "$1" in
  *build.py) cp "$BUILT" "$3" ;;
  -m) exit 0 ;;
  *) exec "$PYTHON" "$@" ;;
esac
"""


def status(folder: Path, built: Path) -> int:
    """That of the step, where the library is `built`."""
    found = re.search(r"^sanitised\(\) \{.*?^\}$", (REPOSITORY / ".ci" / "run").read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    python = folder / "python"
    python.write_text(STAND_IN)
    python.chmod(0o700)
    script = f'set -euo pipefail\nwork="{folder}" python="{python}"\n{found[0]}\nsanitised || exit 1'
    environment = {**os.environ, "BUILT": str(built), "PYTHON": sys.executable}
    return subprocess.run(["bash", "-c", script], cwd=REPOSITORY, env=environment).returncode


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ is found")
def test_a_library_that_does_not_load_fails(tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.touch()
    assert status(tmp_path, broken) == 1


@pytest.mark.long
@needs_native
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ is found")
def test_one_that_loads_passes(tmp_path: Path) -> None:
    assert status(tmp_path, LIBRARY) == 0
