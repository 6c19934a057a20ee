"""What tests of drafts share."""

import gc
from collections.abc import Iterator

import jax
import pytest

from jaxinfer.runner.mappings import mappings
from tests.drafts.drafting import runner

_MANY = 20_000


@pytest.fixture(autouse=True)
def _few_programs() -> Iterator[None]:
    """Those of all files together are more than a process has memory mappings for."""
    yield
    if mappings() > _MANY:
        runner.cache_clear()
        jax.clear_caches()
        gc.collect()
