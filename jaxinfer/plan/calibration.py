"""Calibration: what a machine measured of itself, in place of a chip's peaks. Imports no jax."""

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from jaxinfer.errors import ParameterError, quoted
from jaxinfer.parallel.topology import TARGETS
from jaxinfer.plan.chip import (
    PRODUCT_TYPES,
    TABLES,
    Chip,
    ChipMemory,
    Links,
    Network,
    Table,
    chip_files,
    read_chip,
)

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "calibrations", _PACKAGE.parent / "configs" / "calibrations")
"""Folders of an installed package (pyproject.toml puts the files there), and of a checkout."""
_MOST_BYTES = 1 << 20
_RATES, _SECONDS, _BYTES = (1e3, 1e30), (1e-12, 1e4), (1, 1e18)
"""Limits of plausible values: rates a second, seconds and bytes."""
_KEYS = ("chip", "device", "memory_bytes", "bytes_per_second", "ops_per_second", "tables", "source")
_NAMES = {**{f"products.{kind}": TABLES["products"] for kind in PRODUCT_TYPES}, **TABLES}
_NAMES.pop("products")


def read_calibration(file: Path) -> Chip:
    """The chip that a file names, with what was measured: JSON as `benchmarks/calibrate.py` writes it. file: or the
    name of one that is shipped. Raises ParameterError `calibration` that names the key and what is allowed."""
    file = _shipped().get(str(file), file)
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise _refused(file, "is larger than 1 MiB")
        values = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        known = ", ".join(_shipped())
        raise _refused(file, f"cannot be read: {error.strerror}; give a file, or one of {known}") from None
    except (ValueError, RecursionError):
        raise _refused(file, "is not JSON") from None
    if not isinstance(values, dict):
        raise _refused(file, "must be an object")
    return calibrated_chip(values, file)


def _shipped() -> dict[str, Path]:
    """The shipped files, by name."""
    return {file.stem: file for folder in _FOLDERS for file in sorted(folder.glob("*.json"))}


def calibrated_chip(values: Mapping[str, Any], file: Path) -> Chip:
    """The chip that an object names, as a file has it. file: named in errors. Raises as `read_calibration` does."""
    if missing := [key for key in _KEYS if key not in values]:
        raise _refused(file, f"lacks {', '.join(missing)}")
    name = values["chip"]
    if unknown := [key for key in values if key not in _KEYS]:
        raise _refused(file, f"{', '.join(map(quoted, unknown))}: unknown; known are {', '.join(_KEYS)}")
    if not isinstance(name, str) or (name not in chip_files() and name != "cpu"):
        raise _refused(file, f"chip: {quoted(name)} must be one of cpu, {', '.join(chip_files())}")
    source = str(values["source"])
    rate = _within(file, "bytes_per_second", values["bytes_per_second"], _RATES)
    of_type = _object(file, "ops_per_second", values["ops_per_second"], PRODUCT_TYPES)
    rates = {kind: _within(file, f"ops_per_second.{kind}", each, _RATES) for kind, each in of_type.items()}
    tables = _object(file, "tables", values["tables"], tuple(_NAMES))
    measured = {name: _table(file, name, each) for name, each in tables.items()}
    total = int(_within(file, "memory_bytes", values["memory_bytes"], _BYTES))
    if not rates:
        raise _refused(file, f"ops_per_second: needs one of {', '.join(PRODUCT_TYPES)}")
    if name == "cpu":
        chip = _cpu(str(values["device"]), ChipMemory(total, rate, source), rates, source)
    else:
        known = read_chip(name)
        memory = known.memory._replace(bytes_per_second=rate * known.devices, source=source)
        of_chip = {kind: each * known.devices for kind, each in rates.items()}
        chip = known._replace(memory=memory, ops_per_second={**known.ops_per_second, **of_chip}, ops_source=source)
    return chip._replace(measured=measured, calibrated=True)


def _cpu(device: str, memory: ChipMemory, rates: Mapping[str, float], source: str) -> Chip:
    """Devices of a CPU share its memory: what they exchange, they copy."""
    links = Links("switch", 1, memory.bytes_per_second / 2, 1e-5, f"{source}: half of what memory is read at")
    nothing = Network(memory.bytes_per_second, 0.0, "a CPU's devices are of one host")
    return Chip("cpu", device, "cpu", TARGETS["cpu"].chip_devices, memory, rates, source, links, nothing)


def _object(file: Path, key: str, value: Any, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refused(file, f"{key}: must be an object")
    if unknown := [name for name in value if name not in known]:
        raise _refused(file, f"{key}: {quoted(unknown[0])} must be one of {', '.join(known)}")
    return value


def _table(file: Path, name: str, value: Any) -> Table:
    key, axes = f"tables.{name}", _NAMES[name]
    parts = _object(file, key, value, (*axes, "seconds"))
    if missing := [one for one in (*axes, "seconds") if one not in parts]:
        raise _refused(file, f"{key} lacks {', '.join(missing)}")
    points = tuple(_points(file, f"{key}.{axis}", parts[axis]) for axis in axes)
    return Table(points, _seconds(file, f"{key}.seconds", parts["seconds"], [len(each) for each in points]))


def _points(file: Path, key: str, value: Any) -> tuple[float, ...]:
    numbers = value if isinstance(value, list) else []
    if not numbers or not all(type(each) is int and 1 <= each < 2**40 for each in numbers):
        raise _refused(file, f"{key}: must be a list of integers from 1")
    points = tuple(numbers)
    if any(low >= high for low, high in pairwise(points)):
        raise _refused(file, f"{key}: numbers must rise")
    return points


def _seconds(file: Path, key: str, value: Any, counts: list[int]) -> Any:
    """Nested as the axes are, each with so many points."""
    if not counts:
        return _within(file, key, value, _SECONDS)
    if not isinstance(value, list) or len(value) != counts[0]:
        raise _refused(file, f"{key}: must be lists in lists, an entry for each point of each axis")
    return [_seconds(file, key, each, counts[1:]) for each in value]


def _within(file: Path, key: str, value: Any, bounds: tuple[float, float]) -> float:
    low, high = bounds
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise _refused(file, f"{key}: {quoted(value)} must be a number from {low:g} to {high:g}")
    return value


def _refused(file: Path, reason: str) -> ParameterError:
    return ParameterError("calibration", f"{file}: {reason}")
