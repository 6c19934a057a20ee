"""Formulas of activations, norms and routers: a table each, by the names that layer kinds use.

A formula's first parameter is the module `jax`, which `layers` passes: reading a config.json imports no JAX.
"""

from collections.abc import Mapping
from typing import Any


def check_formula(table: Mapping[str, Any], name: str) -> None:
    """Raise ValueError unless the table has the name."""
    if name not in table:
        raise ValueError(f"{name!r} is not one of {', '.join(table)}")
