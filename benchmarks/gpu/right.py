"""Are the kernels right on this device? Runs the project's own tests of them, against float64, without an interpreter.

Their inputs are drawn anew, and pages hold NaN wherever nothing was written; on a GPU memory that results are put into
held NaN, too.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.context import Context

_REPOSITORY = Path(__file__).resolve().parents[2]
_TESTS = {
    "gpu": ("test_gpu_attention.py", "test_gpu_kv_write.py", "test_gpu_matmuls.py", "test_attention.py"),
    "cpu": ("test_attention.py",),
    "tiny": ("test_attention.py::test_equals_oracle",),
}


class Tally:
    """A plug-in of pytest that writes down what was found after every test."""

    def __init__(self, context: Context):
        self._context = context
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}
        self.failures: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Set-up and tear-down count where they did not pass."""
        if report.when != "call" and report.passed:
            return
        self.counts[report.outcome] += 1
        if report.failed:
            self.failures[report.nodeid] = str(report.longreprtext).strip().splitlines()[-1]
        self._context.save(right=self.counts, wrong=self.failures)


def measure(context: Context) -> None:
    """right: how many tests passed, failed and were skipped. wrong: those that failed, with the last line of each.

    Raises RuntimeError where one failed, or none passed.
    """
    if context.form.name == "gpu":
        os.environ["JAX_PLATFORMS"] = "cuda,cpu"  # tests choose the CPU where nothing is said
    tally = Tally(context)
    files = [str(_REPOSITORY / "tests" / "kernels" / name) for name in _TESTS[context.form.name]]
    settings = ["-o", "addopts=", "--import-mode=importlib", "-p", "no:cacheprovider", "-q", "-m", "not long"]
    pytest.main(["-c", str(_REPOSITORY / "pyproject.toml"), *settings, *files], plugins=[tally])
    if tally.failures or not tally.counts["passed"]:
        raise RuntimeError(f"kernels are not right: {tally.counts}")
