"""Calibration: what a machine measured of itself, in place of a chip's peaks. Imports no jax."""

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from jaxinfer.errors import ParameterError, quoted
from jaxinfer.parallel.topology import TARGETS
from jaxinfer.plan.chip import Chip, Links, Memory, Network, Products, chip_files, read_chip

_MOST_BYTES = 1 << 20
_MOST = 1e30
_TYPES = ("float32", "bfloat16", "float16", "int8", "float8")
"""Of products."""
_KEYS = ("chip", "device", "memory_bytes", "bytes_per_second", "ops_per_second", "products", "source")


def read_calibration(file: Path) -> Chip:
    """The chip that a file names, with what was measured: JSON as `benchmarks/calibrate.py` writes it. Raises
    ParameterError `calibration` that names the key and what is allowed."""
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise _refused(file, "is larger than 1 MiB")
        values = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise _refused(file, f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise _refused(file, "is not JSON") from None
    if not isinstance(values, dict):
        raise _refused(file, "must be an object")
    if missing := [key for key in _KEYS if key not in values]:
        raise _refused(file, f"lacks {', '.join(missing)}")
    return _calibrated(file, values)


def _calibrated(file: Path, values: Mapping[str, Any]) -> Chip:
    name = values["chip"]
    if unknown := [key for key in values if key not in _KEYS]:
        raise _refused(file, f"{', '.join(map(quoted, unknown))}: unknown; known are {', '.join(_KEYS)}")
    if not isinstance(name, str) or (name not in chip_files() and name != "cpu"):
        raise _refused(file, f"chip: {quoted(name)} must be one of cpu, {', '.join(chip_files())}")
    source = str(values["source"])
    rate = _positive(file, "bytes_per_second", values["bytes_per_second"])
    rates = {
        kind: _positive(file, f"ops_per_second.{kind}", each) for kind, each in _object(file, values, "ops_per_second")
    }
    products = {kind: _points(file, f"products.{kind}", each) for kind, each in _object(file, values, "products")}
    total = int(_positive(file, "memory_bytes", values["memory_bytes"], least=1))
    if not rates:
        raise _refused(file, f"ops_per_second: needs one of {', '.join(_TYPES)}")
    if name == "cpu":
        chip = _cpu(str(values["device"]), Memory(total, rate, source), rates, source)
    else:
        known = read_chip(name)
        memory = known.memory._replace(bytes_per_second=rate * known.devices, source=source)
        of_chip = {kind: each * known.devices for kind, each in rates.items()}
        chip = known._replace(memory=memory, ops_per_second={**known.ops_per_second, **of_chip}, ops_source=source)
    return chip._replace(products=products)


def _cpu(device: str, memory: Memory, rates: Mapping[str, float], source: str) -> Chip:
    """Devices of a CPU share its memory: what they exchange, they copy."""
    links = Links("switch", 1, memory.bytes_per_second / 2, 1e-5, f"{source}: half of what memory is read at")
    nothing = Network(memory.bytes_per_second, 0.0, "a CPU's devices are of one host")
    return Chip("cpu", device, "cpu", TARGETS["cpu"].chip_devices, memory, rates, source, links, nothing)


def _object(file: Path, values: Mapping[str, Any], key: str) -> list[tuple[str, Any]]:
    if not isinstance(values[key], dict):
        raise _refused(file, f"{key}: must be an object by type, as float32")
    if unknown := [kind for kind in values[key] if kind not in _TYPES]:
        raise _refused(file, f"{key}: {quoted(unknown[0])} must be one of {', '.join(_TYPES)}")
    return list(values[key].items())


def _points(file: Path, key: str, value: Any) -> Products:
    if not isinstance(value, list) or not value or not all(isinstance(one, list) and len(one) == 2 for one in value):
        raise _refused(file, f"{key}: must be a list of [rows, seconds for each number of the weights]")
    points = [(int(_positive(file, key, rows, least=1)), _positive(file, key, seconds)) for rows, seconds in value]
    if any(low >= high for (low, _), (high, _) in pairwise(points)):
        raise _refused(file, f"{key}: rows must rise")
    return Products(tuple(points))


def _positive(file: Path, key: str, value: Any, least: float = 0.0) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value < _MOST or value <= 0:
        wanted = f"of at least {least:g}" if least else "above 0"
        raise _refused(file, f"{key}: {quoted(value)} must be a number {wanted}, and less than {_MOST:g}")
    return value


def _refused(file: Path, reason: str) -> ParameterError:
    return ParameterError("calibration", f"{file}: {reason}")
