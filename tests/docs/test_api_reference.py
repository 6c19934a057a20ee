"""The API reference is made from docstrings, and fails where one is missing."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

from scripts.make_api_reference import undocumented
from tests.cli.command_line import ENVIRONMENT
from tests.material import REPOSITORY


def test_the_pages_have_what_users_import(tmp_path: Path) -> None:
    script = REPOSITORY / "scripts" / "make_api_reference.py"
    done = subprocess.run(
        [sys.executable, str(script), "--out", str(tmp_path)], capture_output=True, text=True, env=ENVIRONMENT,
        timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "jaxinfer" / "llm.html").read_text()
    for name in ("LLM", "AsyncLLM", "generate", "Continues each prompt"):
        assert name in page
    assert "repetition_penalty" in (tmp_path / "jaxinfer" / "sampling.html").read_text()


def test_a_missing_docstring_is_found() -> None:
    module = ModuleType("made_up", "A module.")
    exec("class A:\n  'A class.'\n  def f(self): pass\ndef g(): pass\ndef _h(): pass", module.__dict__)
    assert undocumented(module) == ["made_up.A.f", "made_up.g"]
