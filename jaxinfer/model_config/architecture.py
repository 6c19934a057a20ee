"""Architecture: how the models of one name in `architectures` are read, and what that was checked against."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.decoder_config import DecoderConfig

Parser = Callable[[ConfigReader], DecoderConfig]
NUMPY_MODEL = "a NumPy model of the published description"
"""Reference of the families that transformers has no class for (scripts/numpy_decoder.py)."""


@dataclass(frozen=True)
class Architecture:
    """A family's parser, under the name that its config.json files have.

    model_types: what files without `architectures` call it. checked_against: what its logits were compared with.
    defaults: values that other programs write out only where they differ, in a `text_config`.
    """

    parse: Parser
    model_types: tuple[str, ...] = ()
    checked_against: str = "transformers"
    defaults: Mapping[str, Any] = field(default_factory=dict)
