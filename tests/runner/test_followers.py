"""A follower over a real runner gives the leader's results, with slot state and KV blocks of its own."""

from typing import Any

import numpy as np
import pytest

from jaxinfer.engine.types import GenerateRequest
from jaxinfer.speculation import Speculation
from tests.engine.followed import FailingCalls, Followed
from tests.engine.toy_grammar import Toy, ToyConstraints
from tests.runner.tiny import VOCABULARY, drive, greedy, make_core, random_prompt, seeded, tiny_runner, twin
from tests.turns import one_of


def workload() -> list[GenerateRequest]:
    """Prompts of several chunks, forks, log-probabilities, a grammar."""
    rng = np.random.default_rng(3)
    shared = random_prompt(rng, 40)
    return [
        GenerateRequest("greedy", shared, greedy(8, logprobs=2)),
        GenerateRequest("forked", shared[:23], seeded(8, 5, n=3)),
        GenerateRequest("scored", shared[:9], greedy(6, prompt_logprobs=1)),
        GenerateRequest("constrained", shared[:7], seeded(9, 4, structured_outputs=Toy(3, 8).constraint)),
    ]


@pytest.mark.long
@pytest.mark.parametrize("options", one_of(2, [{}, {"drafting": Speculation(2, 1, 1)}]), ids=["plain", "drafts"])
def test_a_follower_gives_the_same(options: dict[str, Any]) -> None:
    """After a step that failed, too, and bit by bit."""
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "blocks": 40, **options}
    runner = tiny_runner((None, 12), **sizes)
    other = twin(runner)
    device = FailingCalls(runner)
    pair = Followed(device, other)
    core = make_core(pair.leader, constraints=ToyConstraints(VOCABULARY))
    device.fail_once("dispatched", after=8)
    drive(core, workload())
    assert core.stats().core.step_faults == 1
    pair.check()
    assert pair.compared > 15
