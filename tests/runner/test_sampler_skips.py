"""What the sampler must not do: search for thresholds that nobody asked for, or draw from nothing."""

import jax
import numpy as np
import pytest

from jaxinfer.runner.sampler import draw, sample_tokens
from jaxinfer.sampling import SamplingParams
from tests.runner.rows import Row, run_just, slot_params


@pytest.fixture
def searches(monkeypatch) -> list[int]:
    """An entry a threshold search that a program ran."""
    ran: list[int] = []
    search = draw.largest_threshold

    def counted(*arguments):
        jax.debug.callback(lambda: ran.append(1))
        return search(*arguments)

    monkeypatch.setattr(draw, "largest_threshold", counted)
    return ran


@pytest.mark.few(2)
@pytest.mark.parametrize(("greedy", "drawn", "expected"), [
    ({"temperature": 0.0, "top_p": 0.5, "top_k": 3}, {}, 0),
    ({"top_k": 1}, {}, 0),
    ({"temperature": 0.0}, {"top_p": 0.5}, 1),
    ({"temperature": 0.0}, {"top_p": 0.5, "top_k": 3}, 2),
])  # fmt: skip
def test_greedy_rows_ask_for_no_thresholds(searches: list[int], greedy, drawn, expected: int) -> None:
    """Rows of padding are greedy, with a top_p of 0 as `admit` pads it."""
    rows = [Row(np.arange(40.0), SamplingParams(**params)) for params in (greedy, drawn)]
    params = slot_params(rows)
    counts, two = np.zeros((3, 40), np.int16), np.arange(2, dtype=np.int32)
    logits = np.stack([row.logits for row in rows]).astype(np.float32)
    program = jax.jit(lambda *arguments: sample_tokens(*arguments))
    tokens = program(logits, counts, two, params, two + 1, np.full(2, -1, np.int32)).tokens
    jax.effects_barrier()
    assert int(tokens[0]) == 39
    assert len(searches) == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_whose_every_token_is_banned_draws_none(temperature: float) -> None:
    """It once drew a banned token, or one beyond the vocabulary."""
    params = SamplingParams(temperature=temperature, min_tokens=2, seed=1)
    banned = Row(np.arange(8.0), params, stop_ids=range(8))
    left = Row(np.arange(8.0), params, stop_ids=[0, 1, 2, 4, 5, 6, 7])
    assert run_just([banned, left]).tokens.tolist() == [-1, 3]
