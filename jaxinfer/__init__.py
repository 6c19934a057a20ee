"""jaxinfer: a serving engine for large language models in JAX.

The names below are imported when they are first used, so that `import jaxinfer` costs nothing and
a process that only talks HTTP never imports jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

from jaxinfer.version import __version__

if TYPE_CHECKING:
    from jaxinfer.constraint import Constraint
    from jaxinfer.llm import LLM, AsyncLLM
    from jaxinfer.sampling import SamplingParams

__all__ = ["LLM", "AsyncLLM", "Constraint", "SamplingParams", "__version__"]

_HOMES = {
    "LLM": "jaxinfer.llm",
    "AsyncLLM": "jaxinfer.llm",
    "Constraint": "jaxinfer.constraint",
    "SamplingParams": "jaxinfer.sampling",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
