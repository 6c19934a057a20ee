"""What tests of drafts share."""

import gc
from collections.abc import Iterator

import jax
import pytest

from tests.drafts.drafting import runner


@pytest.fixture(autouse=True, scope="module")
def _few_programs() -> Iterator[None]:
    """Those of a file's engines end with it: all together are more than a process has memory mappings for."""
    yield
    runner.cache_clear()
    jax.clear_caches()
    gc.collect()
