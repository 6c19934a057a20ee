"""Several decode steps in one program give what single steps give, on the real runner."""

from functools import cache

import numpy as np
import pytest

from jaxinfer.engine.types import FinishReason, GenerateRequest
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.state import unpack_newest
from tests.runner.tiny import (
    Judge,
    check_all,
    drive,
    greedy,
    make_core,
    random_prompt,
    seeded,
    tiny_model,
    tiny_shapes,
)

EOS = (9,)


@cache
def runner(steps: int) -> JaxRunner:
    model = tiny_model((None, 12))
    made = JaxRunner(model, tiny_shapes(model, max_num_seqs=4, max_num_batched_tokens=32, decode_steps=steps))
    made.warm_up()
    return made


def requests() -> list[GenerateRequest]:
    rng = np.random.default_rng(40)
    return [
        GenerateRequest("greedy", random_prompt(rng, 9), greedy(30)),
        GenerateRequest("seeded", random_prompt(rng, 14), seeded(25, 7)),
        GenerateRequest("penalties", random_prompt(rng, 5), greedy(22, repetition_penalty=1.3, presence_penalty=0.4)),
        GenerateRequest("choices", random_prompt(rng, 11), seeded(18, -5, n=3)),
        GenerateRequest("stops", random_prompt(rng, 8), seeded(40, 3, stop_token_ids=tuple(range(30, 60)))),
        GenerateRequest("late stop", random_prompt(rng, 8), seeded(40, 4, min_tokens=6, ignore_eos=False)),
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_several_steps_give_what_single_steps_give(ahead: int) -> None:
    single = drive(make_core(runner(1), ahead=ahead, eos=EOS), requests())
    compiles = runner(5).status().compiles_after_ready
    several = drive(make_core(runner(5), ahead=ahead, eos=EOS), requests())
    assert runner(5).status().compiles_after_ready == compiles
    check_all(Judge(runner(1).stages[0].model), requests(), several)
    for key, output in single.items():
        assert (several[key].tokens, several[key].reason, several[key].stopped_by) == (
            output.tokens, output.reason, output.stopped_by,
        )  # fmt: skip
    assert single["stops", 0].reason is FinishReason.STOP


def test_several_steps_end_when_every_row_has_ended() -> None:
    """The loop's count, read off the slot's position: rows that stop early leave the rest of the steps undone."""
    made, (subject,) = runner(5), [request for request in requests() if request.request_id == "stops"]
    made.reset()
    core = make_core(made, ahead=3, eos=EOS)
    outputs = drive(core, [subject])
    tokens = outputs["stops", 0].tokens
    # Steps ahead of the stop found the row ended, and drew nothing more.
    assert (
        int(unpack_newest(made.stages[0].slots.state.newest).length.max())
        == len(subject.prompt_token_ids) + len(tokens) - 1
    )
