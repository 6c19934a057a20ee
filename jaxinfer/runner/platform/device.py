"""The device that JAX runs on. A CPU instead of an accelerator is an error here; JAX itself says little, and goes on.

Causes are a driver that is too old for CUDA's libraries, and a plug-in that does not load.
"""

import logging
import os
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec

import jax

from jaxinfer.config import Device
from jaxinfer.errors import ParameterError, shortened
from jaxinfer.parallel.mesh import platform_kind

_PLUGINS = "jax_plugins"
"""JAX's group of entry points, and its namespace package: it looks in both."""
_PLATFORMS = {"cuda": "gpu", "rocm": "gpu", "tpu": "tpu"}
"""Parts of the names of plug-ins and extras, and the platform that they are for."""
_EXTRAS = "JAXINFER_EXTRAS"
_NEEDS = {
    "gpu": "CUDA 13 needs NVIDIA's driver 580 or newer (extra cuda13), CUDA 12 needs 525 or newer (extra cuda12)",
    "tpu": "the TPU must be free, and libtpu of JAX's version (extra tpu)",
}
_LONGEST = 600


def limit_device(asked: Device) -> None:
    """Have JAX use the CPU alone if that is asked for. Without effect once JAX has devices."""
    if asked == "cpu":
        jax.config.update("jax_platforms", "cpu")


def check_device(asked: Device) -> None:
    """Have JAX find its devices.

    Raises ParameterError, with what JAX says, where they are others than those that are asked for, and where it finds
    only a CPU beside a plug-in for an accelerator; but not where `asked` or JAX_PLATFORMS says `cpu`.
    """
    with _heard() as said:
        try:
            found = platform_kind(jax.default_backend())
        except (RuntimeError, AssertionError) as error:  # an assertion fails where no plug-in is there
            told = shortened(str(error) or "; ".join(said), _LONGEST) or "no plug-in for it is installed"
            limit = jax.config.values["jax_platforms"]
            raise ParameterError("device", f"JAX finds none (JAX_PLATFORMS={limit}): {told}") from None
    if asked not in ("auto", found):
        raise _error(f"{asked} is asked for", {asked}, found, said)
    if asked == "auto" and found == "cpu" and not _prefers_cpu():
        wanted = _accelerators()
        if wanted:
            raise _error(f"{', '.join(wanted)} is there", set(wanted.values()), found, said)


def _prefers_cpu() -> bool:
    """Return True if JAX_PLATFORMS names the CPU first."""
    return (jax.config.values["jax_platforms"] or "").partition(",")[0] == "cpu"


def _error(cause: str, platforms: set[str], found: str, said: list[str]) -> ParameterError:
    needs = "; ".join(_NEEDS[platform] for platform in sorted(platforms) if platform in _NEEDS)
    cpu = "; give --device cpu if the CPU is meant" if found == "cpu" and needs else ""
    return ParameterError("device", f"{cause}, but JAX runs on {found}: {_reason(platforms, said)}. {needs}{cpu}")


def _accelerators() -> dict[str, str]:
    """Return what shows that an accelerator is meant, installed plug-ins and extras, each with its platform."""
    plugins = [point.name for point in entry_points(group=_PLUGINS)]
    with suppress(ImportError):
        plugins += [module.name for module in pkgutil.iter_modules(import_module(_PLUGINS).__path__)]
    plugins += ["libtpu"] if find_spec("libtpu") else []
    extras = os.environ.get(_EXTRAS, "").replace(",", " ").split()
    shown = {f"plug-in {name}": name for name in plugins}
    shown |= {f"{_EXTRAS}={extra}": extra for extra in extras if not extra.startswith("compile-")}
    return {told: platform for told, name in shown.items() for word, platform in _PLATFORMS.items() if word in name}


def _reason(platforms: set[str], said: list[str]) -> str:
    """Return what JAX said of these platforms, now or when it first looked for devices."""
    words = [word for word, platform in _PLATFORMS.items() if platform in platforms]
    heard = [line for line in said if any(word in line for word in words)]
    for word in () if heard else words:
        try:
            jax.devices(word)
        except RuntimeError as error:
            heard.append(str(error))
    lines = dict.fromkeys(line.rstrip(".") for line in heard)
    return shortened("; ".join(lines), _LONGEST) or "JAX gives no reason"


@contextmanager
def _heard() -> Iterator[list[str]]:
    """Collect what JAX logs meanwhile. That a plug-in does not load is an error there, and that a platform has no
    device is information, which nobody else hears who would not have."""
    logger, lines = logging.getLogger("jax"), list[str]()
    level, shown = logger.level, logger.getEffectiveLevel()

    def hear(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        lines.append(" ".join([record.getMessage(), *([f"({error})"] if error else [])]))
        return record.levelno >= shown

    heard = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.split(".")[0] == "jax"]
    for each in heard:
        each.addFilter(hear)
    logger.setLevel(min(shown, logging.INFO))
    try:
        yield lines
    finally:
        logger.setLevel(level)
        for each in heard:
            each.removeFilter(hear)
