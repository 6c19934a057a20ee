"""Pools of blocks that hold no request at all are refused at start."""

from typing import Any

import pytest

from jaxinfer.config import EngineConfig, SchedulerConfig
from jaxinfer.errors import ParameterError
from jaxinfer.model_config.registry import parse_config
from jaxinfer.runner.fit.sizes import Device, fit_context, plan_shapes
from tests.engine.small import small_shapes
from tests.model_config.config_json import LLAMA


@pytest.mark.parametrize(("blocks", "size"), [(1, 4), (2, 1)])
def test_blocks_that_hold_no_request_are_refused(blocks: int, size: int) -> None:
    with pytest.raises(ParameterError, match="num_blocks"):
        fit_context(EngineConfig(), small_shapes(blocks, block_size=size))


def test_a_step_scores_prompts_beside_a_row_of_every_slot() -> None:
    decoder = parse_config(LLAMA)
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 32 + 64),
        ({"max_num_batched_tokens": 48}, 48),
        ({"max_scored": 40}, 40),
    ]
    for settings, scored in cases:
        config = EngineConfig(scheduler=SchedulerConfig(max_num_seqs=32, **settings))
        assert plan_shapes(config, decoder, Device("cpu", None)).max_scored == scored
