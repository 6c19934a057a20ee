"""CompileCounter: how many programs XLA compiled, in this process."""

import threading

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"


class CompileCounter:
    """Counts compilations since it was made, in whichever thread they happen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    @property
    def count(self) -> int:
        return self._count

    def _listen(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _EVENT:
            with self._lock:
                self._count += 1


compile_counter = CompileCounter()
"""The process's one counter: JAX keeps listeners for good."""
