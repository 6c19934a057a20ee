"""Programs of a file's models go with it: each holds mappings of memory, of which a process has 65,530."""

from collections.abc import Iterator

import jax
import pytest

from . import test_goldens


@pytest.fixture(autouse=True, scope="module")
def programs_end_with_their_file() -> Iterator[None]:
    yield
    test_goldens.paged_family.cache_clear()
    jax.clear_caches()
