"""Reports of commands as JSON, for programs."""

import json
import sys
from collections.abc import Mapping
from typing import Any


def show_json(report: Any) -> None:
    """Print a report on standard output."""
    json.dump(as_json(report), sys.stdout, indent=2)
    print()


def as_json(value: Any) -> Any:
    """Return a value as JSON has it: named tuples as objects, whatever they are in."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {name: as_json(each) for name, each in value.items()}
    return [as_json(each) for each in value] if isinstance(value, list | tuple) else value
