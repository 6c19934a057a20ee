"""Are the kernels right on this device? Runs the project's own tests of them, against float64, without an interpreter.

No two tests have the same inputs, nor do two runs: what a test leaves in memory is nobody else's answer. Pages hold NaN
wherever nothing was written (or are compared slot by slot, where they are written alone); on a GPU or TPU memory that
results are put into held NaN, too.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.device.context import Context

_REPOSITORY = Path(__file__).resolve().parents[2]
_TESTS = {
    "gpu": ("test_gpu_kv_write.py", "test_gpu_attention.py", "test_gpu_matmuls.py", "test_attention.py"),
    "tpu": ("test_tpu_attention.py", "test_quantized_matmul.py", "test_grouped_matmul.py", "test_attention.py"),
    "cpu": ("test_attention.py",),
}
"""Files of tests, by platform."""
_TINY = ("test_attention.py::test_equals_oracle",)
_JAX_PLATFORMS = {"gpu": "cuda,cpu", "tpu": "tpu,cpu"}
_POWERS = range(6, 27)
"""Powers of two, counts of values of four bytes: 256 bytes to 256 MiB."""


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


class Fresh:
    """A plug-in of pytest: what tests draw by NumPy depends on `seed` and on the test's place, too.

    Within a test the same seed draws the same. On a GPU or TPU chunks of memory of every size hold NaN before each
    test.
    """

    def __init__(self, seed: int):
        self._seed, self._tests = seed, 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        import jax  # not before `measure` has said for which device

        self._tests += 1
        original, place = np.random.default_rng, (self._seed, self._tests)
        if jax.default_backend() != "cpu":
            poison_memory()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(np.random, "default_rng", lambda seed: original((*place, seed)))
            return (yield)


def poison_memory() -> None:
    """Two chunks of each size that an allocator deals in, all at once, full of NaN, and given back."""
    import jax
    import jax.numpy as jnp

    chunks = [jnp.full(1 << power, jnp.nan, jnp.float32) for power in _POWERS for _ in range(2)]
    for chunk in jax.block_until_ready(chunks):
        chunk.delete()


def measure(context: Context) -> None:
    """right: how many tests passed, failed and were skipped. wrong: those that failed, with the last line of each.
    seed: what their inputs were drawn with.

    Raises RuntimeError where one failed, or none passed.
    """
    form = context.form
    if form.platform in _JAX_PLATFORMS:
        os.environ["JAX_PLATFORMS"] = _JAX_PLATFORMS[form.platform]  # tests choose the CPU where nothing is said
    tally, seed = Tally(context), int(time.time())
    context.save(seed=seed)
    names = _TINY if form.name == "tiny" else _TESTS[form.platform]
    files = [str(_REPOSITORY / "tests" / "kernels" / name) for name in names]
    marks = "" if form.platform == "tpu" else "not long"  # a GPU is often lent for minutes
    settings = ["-o", "addopts=", "--import-mode=importlib", "-p", "no:cacheprovider", "-q", "-m", marks]
    pytest.main(["-c", str(_REPOSITORY / "pyproject.toml"), *settings, *files], plugins=[tally, Fresh(seed)])
    if tally.failures or not tally.counts["passed"]:
        raise RuntimeError(f"kernels are not right: {tally.counts}")
