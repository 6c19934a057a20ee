"""GenerationDefaults: sampling parameters that a model folder declares for requests that are silent."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxinfer.errors import ModelError, ParameterError, shortened
from jaxinfer.folder_files import is_there, read_object
from jaxinfer.sampling import SamplingParams


@dataclass(frozen=True)
class GenerationDefaults:
    """What generation_config.json says of sampling; None where it says nothing.

    `do_sample: false` makes the default greedy. max_tokens is its `max_new_tokens`.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None

    @classmethod
    def from_folder(cls, folder: Path) -> "GenerationDefaults":
        """Reads generation_config.json where there is one. Raises ModelError, naming the file and field."""
        file = folder / "generation_config.json"
        if not is_there(file):
            return cls()
        config = read_object(file)
        values = {name: config.get(name) for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
        if config.get("do_sample") is False:
            values["temperature"] = 0.0
        defaults = cls(**values, max_tokens=config.get("max_new_tokens"))
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
        declared = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        said = {name: value for name, value in given.items() if value is not None}
        return SamplingParams(**{"max_tokens": default_max_tokens, **declared, **said})
