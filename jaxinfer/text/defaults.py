"""GenerationDefaults: sampling parameters that a model folder declares for requests that are silent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxinfer.model_config.generation_config import read_generation_config
from jaxinfer.sampling import SamplingParams


@dataclass(frozen=True)
class GenerationDefaults:
    """Sampling defaults of generation_config.json: parameters by name. max_tokens is its `max_new_tokens`."""

    declared: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_folder(cls, folder: Path) -> "GenerationDefaults":
        """Raises ModelError, naming the file and field."""
        return cls(read_generation_config(folder).sampling)

    def params(self, *, default_max_tokens: int | None = None, **given: Any) -> SamplingParams:
        """Sampling parameters of a request. `given` holds what it said; None means it was silent.

        default_max_tokens: where neither says it; None goes on to the end of the context.
        Raises ParameterError.
        """
        said = {name: value for name, value in given.items() if value is not None}
        return SamplingParams(**{"max_tokens": default_max_tokens, **self.declared, **said})
