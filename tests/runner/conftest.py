"""What tests of the runner share."""

import gc
from collections.abc import Iterator

import jax
import pytest

from jaxinfer.runner.platform.mappings import mappings
from tests.few_programs import few_programs as few_programs

_MANY = 20_000


@pytest.fixture(autouse=True, scope="module")
def _few_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Engines that a file keeps end with it: those of all together are more than a process has memory mappings for."""
    yield
    if mappings() > _MANY:
        for kept in vars(request.module).values():
            if hasattr(kept, "cache_clear"):
                kept.cache_clear()
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def compiles() -> Iterator[list[str]]:
    """Names of JAX's own events of programs that it compiled."""
    seen: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if "compile" in event:
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)
