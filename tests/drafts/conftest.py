"""What tests of drafts share."""

import gc
from collections.abc import Iterator

import jax
import pytest

from jaxinfer.runner.platform.mappings import mappings
from tests.drafts.drafting import runner

_MANY = 40_000


@pytest.fixture(autouse=True, scope="module")
def _engines_of_a_file(request: pytest.FixtureRequest) -> Iterator[None]:
    """Those that a file keeps for itself end with it, so that `runner` keeps those of all files."""
    yield
    for kept in vars(request.module).values():
        if hasattr(kept, "cache_clear") and kept is not runner:
            kept.cache_clear()
    gc.collect()


@pytest.fixture(autouse=True)
def _few_programs() -> Iterator[None]:
    """Those of all files together are more than a process has memory mappings for."""
    yield
    if mappings() > _MANY:
        runner.cache_clear()
        jax.clear_caches()
        gc.collect()
