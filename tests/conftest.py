"""Settings of every test: JAX on the CPU, a compile cache that outlives the session, the same draws each time."""

import hashlib
import os
import platform
import sys
from collections.abc import Generator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.children import children_with
from tests.draws import budget, first_seed
from tests.turns import mark_long_cases, shuffled, split_by_turn, turns


def _machine() -> str:
    """A digest of the processor's features: code compiled for one set may not run on another."""
    try:
        text = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    except (OSError, StopIteration):
        text = platform.machine() + platform.processor()
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _compile_cache() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return home / "jaxinfer" / "tests" / f"{python}-jax-{version('jax')}-{_machine()}"


# Environment variables rather than jax.config: JAX is not imported here, and processes that tests start inherit them.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_compile_cache()))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# On a CPU most programs run once or twice: so they compile in less than half the time, and run slower. `XLA_FLAGS=`
# before the command compiles them as users do. LLVM gets a program in one part rather than in many, which machines of
# more cores would compile side by side: each part has a price of its own. Of extra options XLA need not know the names.
if os.environ["JAX_PLATFORMS"] == "cpu":
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
        " --xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters",
    )

# The same examples in every run, so that a commit either passes or does not; `explore` looks for new ones.
_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("default", derandomize=True, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("ci", settings.get_profile("default"), print_blob=True)
settings.register_profile("explore", deadline=None, max_examples=1000, suppress_health_check=_SLOW)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_report_header(config: pytest.Config) -> str:
    header = f"random cases: JAXINFER_TEST_SEED={first_seed()}, JAXINFER_TEST_SECONDS={budget():g}"
    header += "; in a drawn order: JAXINFER_TEST_SHUFFLE" if os.environ.get("JAXINFER_TEST_SHUFFLE") else ""
    return header if turns() == 1 else f"{header}; of long tests one of {turns()}: JAXINFER_TEST_TURNS"


_HELPERS = ("jaxinfer.grammar.trial_worker", "template_worker", "jaxinfer.serving.workers.main")
"""Processes that end with the one that reads their answers, whether or not it has closed them."""


_LEFT = pytest.StashKey[list[str]]()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Keep what a process of pytest-xdist tells."""
    node.config.stash.setdefault(_LEFT, []).extend(getattr(node, "workeroutput", {}).get("left", []))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run whose tests leave processes behind: they take memory, and later tests would count them."""
    config = session.config
    if hasattr(config, "workeroutput"):  # the process that started this one ends the run
        config.workeroutput["left"] = _left()  # pyright: ignore[reportAttributeAccessIssue]
        return
    left = config.stash.get(_LEFT, []) if config.getoption("numprocesses", None) else _left()
    if left:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        pytest.exit("tests have left processes behind: " + "; ".join(left), pytest.ExitCode.INTERNAL_ERROR)


def _left() -> list[str]:
    """Return the command lines of this process's children that outlive it."""
    commands = [" ".join(child.cmdline()) for child in children_with("")]
    return [command for command in commands if not any(helper in command for helper in _HELPERS)]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    mark_long_cases(items)  # before `-m` selects
    yield
    chosen, waiting = split_by_turn(items)
    items[:] = shuffled(chosen)
    if waiting:
        config.hook.pytest_deselected(items=waiting)
