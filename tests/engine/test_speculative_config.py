"""What `speculative_config` takes, and what it says of the rest."""

import json
from typing import Any

import pytest

from jaxinfer.config import EngineConfig, SchedulerConfig
from jaxinfer.config_tree import with_values
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.errors import ParameterError
from jaxinfer.speculation import Speculation, read_speculation


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, Speculation(4, 2, 5)),
        ({"num_speculative_tokens": 7}, Speculation(7, 2, 5)),
        ({"prompt_lookup_min": 3, "prompt_lookup_max": 3}, Speculation(4, 3, 3)),
        ({"prompt_lookup_max": 1}, Speculation(4, 1, 1)),
        ({"prompt_lookup_min": 8}, Speculation(4, 8, 8)),
        ({"num_speculative_tokens": None}, Speculation(4, 2, 5)),
    ],
)
def test_numbers_that_are_left_out(given: dict[str, Any], found: Speculation) -> None:
    assert read_speculation(json.dumps({"method": "ngram", **given})) == found


def test_nothing_is_asked_for() -> None:
    assert read_speculation(None) is None
    assert EngineConfig().scheduler.speculative_config is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ngram", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ('{"method": ' + "[" * 900 + "]" * 900 + "}", "method must be"),
        ("[]", "must be a JSON object"),
        ("{}", "method must be ngram, draft_model or eagle3, not null"),
        ('{"method": "guess"}', 'method must be ngram, draft_model or eagle3, not "guess"'),
        ('{"method": ["ngram"]}', "method must be ngram"),
        ('{"method": "ngram", "draft": "x"}', "draft is not known"),
        ('{"method": "ngram", "model": "x"}', "model means nothing to method ngram"),
        ('{"model": "x", "prompt_lookup_max": 3}', "prompt_lookup_max means nothing to method draft_model"),
        ('{"method": "draft_model"}', "model must be a folder or a hub id, not null"),
        ('{"method": "eagle3"}', "model must be a folder or a hub id, not null"),
        (
            '{"method": "eagle3", "model": "x", "prompt_lookup_min": 1}',
            "prompt_lookup_min means nothing to method eagle3",
        ),
        ('{"model": 3}', "model must be a folder or a hub id, not 3"),
        ('{"method": "eagle"}', "method eagle is not supported yet; ngram, draft_model and eagle3 are"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "num_speculative_tokens must be a whole number, 1 to 16"),
        ('{"method": "ngram", "num_speculative_tokens": 2.5}', "not 2.5"),
        ('{"method": "ngram", "num_speculative_tokens": true}', "not true"),
        ('{"method": "ngram", "prompt_lookup_max": 33}', "prompt_lookup_max must be a whole number, 1 to 32"),
        ('{"method": "ngram", "prompt_lookup_min": 3, "prompt_lookup_max": 2}', "3, is more than prompt_lookup_max, 2"),
    ],
)
def test_errors_name_the_key_and_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(ParameterError, match="speculative_config") as caught:
        SchedulerConfig(speculative_config=text)
    assert message in str(caught.value)


def test_a_mapping_is_taken_where_there_is_no_command_line() -> None:
    config = with_values(EngineConfig(), {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}})
    assert read_speculation(config.scheduler.speculative_config) == Speculation(2, 2, 5)


def test_several_decode_steps_of_one_dispatch_are_refused_beside_it() -> None:
    with pytest.raises(ParameterError, match="decode_steps: must be 1 with speculative_config"):
        SchedulerConfig(speculative_config='{"method": "ngram"}', decode_steps=2)
    with pytest.raises(ParameterError, match="decode_steps"):
        EngineShapes(1, 1, 1, 8, 4, (KVGroup(None, 4),), 9, decode_steps=2, drafting=Speculation(1, 1, 1))


@pytest.mark.parametrize("value", [{"method": "ngram"}, 3, ["ngram"]])
def test_what_is_no_text_is_told(value: Any) -> None:
    with pytest.raises(ParameterError, match="speculative_config: must be the text of a JSON object"):
        SchedulerConfig(speculative_config=value)
    with pytest.raises(ParameterError, match="speculative_config"):
        with_values(EngineConfig(), {"speculative_config": {"method": object()}})
