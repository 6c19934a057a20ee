"""pytest's plugin for vLLM's tests: puts the stand-ins in place before a test file is imported."""

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import remote_server
import served_model
import transformers
import vllm_modules

vllm_modules.install()
sys.modules["tests.utils"] = remote_server
sys.modules["tests.conftest"] = ModuleType("tests.conftest")
sys.modules["tests.conftest"].__dict__["LocalAssetServer"] = object

TESTS = set(Path(os.environ["JAXINFER_SUITE_TESTS"]).read_text().splitlines())
OUTCOMES = Path(os.environ["JAXINFER_SUITE_OUTCOMES"])
_from_pretrained = transformers.AutoTokenizer.from_pretrained


def from_pretrained(name: str, *arguments: object, **options: object) -> object:
    """The served model's tokenizer, under whatever name."""
    return _from_pretrained(str(served_model.folder()), *arguments, **options)


transformers.AutoTokenizer.from_pretrained = from_pretrained


@pytest.fixture(scope="session")
def local_asset_server() -> None:
    """Images, which no test here needs."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole files are given to pytest: its own order is kept, on which tests of counters depend."""
    items[:] = [item for item in items if item.nodeid in TESTS]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixture that starts the server."""
    served_model.choose_for(item.path.name)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A line a test: what it came to, or where it failed outside of its body."""
    if report.when == "call" or report.outcome != "passed":
        line = {"test": report.nodeid, "outcome": report.outcome, "message": message(report)}
        with OUTCOMES.open("a") as file:
            file.write(json.dumps(line) + "\n")


def message(report: pytest.TestReport) -> str:
    """The exception, in its first line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message.partition("\n")[0] if crash else ""
