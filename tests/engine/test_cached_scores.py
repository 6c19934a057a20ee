"""Prompts whose log-probabilities are asked for are computed whole, and leave their blocks in the prefix cache."""

import pytest

from jaxinfer.engine.core import EngineCore
from tests.engine.small import RecordingRunner, ask, right, run, small_core, small_shapes, tokens_of

LONG = [(i * 7 + 3) % 50 for i in range(40)]


def cached(core: EngineCore, name: str, length: int, scored: bool = False) -> int:
    """Prompt tokens of a request that were reused, whose tokens and log-probabilities are right."""
    request = ask(name, LONG[:length], prompt_logprobs=1 if scored else None)
    core.add_request(request)
    deltas = run(core)[name, 0]
    assert tokens_of(deltas) == right(core, request)
    assert [len(delta.prompt_logprobs) for delta in deltas if delta.prompt_logprobs] == [length] * scored
    return max(delta.cached_tokens for delta in deltas)


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("window", [None, 8])
def test_scored_prompts_leave_their_blocks_in_the_cache(ahead: int, window: int | None) -> None:
    core = small_core(RecordingRunner(small_shapes(window=window)), ahead=ahead)
    assert cached(core, "scored", 20, scored=True) == 0
    assert cached(core, "plain", 20) == 16
    assert cached(core, "again", 20, scored=True) == 0
    assert cached(core, "longer", 28, scored=True) == 0
    assert cached(core, "after", 28) == 24


@pytest.mark.parametrize("blocks", [13, 14, 18, 23])
def test_where_memory_is_short_a_scored_prompt_ends_all_the_same(blocks: int) -> None:
    """It would hold cached blocks beside its own."""
    core = small_core(RecordingRunner(small_shapes(blocks=blocks)))
    for i in range(3):
        assert cached(core, f"scored {i}", 40, scored=True) == 0
