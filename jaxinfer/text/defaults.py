"""GenerationDefaults: sampling parameters that a model folder declares for requests that are silent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxinfer.errors import ModelError, ParameterError, shortened
from jaxinfer.folder_files import is_there, read_object
from jaxinfer.sampling import SamplingParams, generation_keys


@dataclass(frozen=True)
class GenerationDefaults:
    """What generation_config.json says of sampling: parameters by name.

    `do_sample: false` makes the default greedy. max_tokens is its `max_new_tokens`.
    """

    declared: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_folder(cls, folder: Path) -> "GenerationDefaults":
        """Reads generation_config.json where there is one. Raises ModelError, naming the file and field."""
        file = folder / "generation_config.json"
        if not is_there(file):
            return cls()
        config = read_object(file)
        declared = {name: config[key] for name, key in generation_keys().items() if config.get(key) is not None}
        if config.get("do_sample") is False:
            declared["temperature"] = 0.0
        defaults = cls(declared)
        try:
            defaults.params()
        except ParameterError as error:
            raise ModelError(f"{file}: {shortened(str(error))}") from None
        return defaults

    def params(self, *, default_max_tokens: int | None = None, **given: Any) -> SamplingParams:
        """Sampling parameters of a request. `given` holds what it said; None means it was silent.

        default_max_tokens: where neither says it; None goes on to the end of the context.
        Raises ParameterError.
        """
        said = {name: value for name, value in given.items() if value is not None}
        return SamplingParams(**{"max_tokens": default_max_tokens, **self.declared, **said})
