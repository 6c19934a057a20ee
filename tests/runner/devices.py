"""Functions of modules, called in processes of their own: over several devices of a CPU, or before JAX has any."""

import os
import subprocess
import sys
from collections.abc import Callable


def run_on_devices(function: Callable[..., None], devices: int, *arguments: object, **named: object) -> None:
    """Call a function where the CPU is so many devices; fails with the end of what it told where it fails.

    Its arguments are plain values: they are written out.
    """
    _call(function, f"{_flags()} --xla_force_host_platform_device_count={devices}", *arguments, **named)


def run_without_devices(function: Callable[..., None], *arguments: object) -> None:
    """The same where the number of devices is the function's own choice."""
    _call(function, " ".join(flag for flag in _flags().split() if "device_count" not in flag), *arguments)


def _flags() -> str:
    return os.environ.get("XLA_FLAGS", "")


def _call(function: Callable[..., None], flags: str, *arguments: object, **named: object) -> None:
    call = f"from {function.__module__} import {function.__name__} as call; call(*{arguments!r}, **{named!r})"
    environment = {**os.environ, "XLA_FLAGS": flags}
    done = subprocess.run([sys.executable, "-c", call], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
