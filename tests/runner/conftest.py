"""What tests of the runner share."""

from collections.abc import Iterator

import jax
import pytest


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
