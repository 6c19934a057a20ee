"""Fields of published config.json files that no other file of their family has."""

from typing import Any

import pytest

from jaxinfer.errors import ModelError
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.registry import parse_config

from .config_json import LLAMA
from .uniform import kind_of


def parse(architecture: str, **changes: Any) -> DecoderConfig:
    return parse_config({**LLAMA, "architectures": [architecture], **changes})


def test_command_r_declares_its_context_as_model_max_length() -> None:
    assert parse("CohereForCausalLM", model_max_length=131072).max_position_embeddings == 131072
    assert parse("CohereForCausalLM", model_max_length=8).max_position_embeddings == 256
    assert parse("CohereForCausalLM").max_position_embeddings == 256


@pytest.mark.parametrize("value", [False, True])
def test_how_command_r7b_was_sharded_in_training_does_not_matter(value: bool) -> None:
    assert parse("Cohere2ForCausalLM", use_parallel_embedding=value) == parse("Cohere2ForCausalLM")
