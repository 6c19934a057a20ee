"""Programs that the tests of a process share, until they hold too many mappings of memory."""

import gc
from collections.abc import Iterator

import jax
import pytest

from jaxinfer.runner.platform.compiles import compile_counter
from jaxinfer.runner.platform.mappings import mappings

_MANY = 20_000
"""Of the 65,530 that Linux allows a process: a test of many programs takes some 10,000, and engines are kept."""


@pytest.fixture(autouse=True)
def few_programs() -> Iterator[None]:
    """Drop JAX's programs after a test that has left too many. Cleared after each, cases would compile them again."""
    before = compile_counter.count
    yield
    if compile_counter.count > before and mappings() > _MANY:
        jax.clear_caches()
        gc.collect()
