"""Buckets: every size that a plan can have is in one, and the top is the budget."""

from dataclasses import replace

import pytest

from jaxinfer.engine.step.buckets import bucket_of, first_buckets, make_buckets, missing_sizes, with_size
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.errors import ParameterError
from jaxinfer.speculation import Speculation


def shapes(seqs: int, tokens: int, scored: int) -> EngineShapes:
    return EngineShapes(seqs, tokens, scored, 64, 4, (KVGroup(None, 9),), 61)


@pytest.mark.parametrize(
    ("seqs", "tokens", "scored"),
    [(1, 1, 1), (3, 5, 4), (8, 8, 8), (8, 16, 8), (100, 700, 300), (256, 2048, 256), (33, 40959, 40960)],
)
def test_every_size_has_a_bucket_and_the_top_is_the_budget(seqs, tokens, scored) -> None:
    buckets = make_buckets(shapes(seqs, tokens, scored))
    for sizes, budget in zip(buckets[:4], (tokens, seqs, scored, seqs), strict=True):
        assert sizes[-1] == budget
        assert list(sizes) == sorted(set(sizes))
        for size in range(1, min(budget, 3000) + 1):
            assert bucket_of(size, sizes) == min(bucket for bucket in sizes if bucket >= size)
        with pytest.raises(ValueError, match="above the largest"):
            bucket_of(budget + 1, sizes)


def test_programs_are_a_sum_and_about_thirty() -> None:
    assert sum(map(len, make_buckets(shapes(256, 2048, 256)))) <= 36
    # More room for log-probabilities of prompts is one program more, however much it is.
    for seqs in (1, 32, 256):
        fewest = len(make_buckets(shapes(seqs, 2048, seqs)).scored)
        assert len(make_buckets(shapes(seqs, 2048, seqs + 64)).scored) == fewest + 1


@pytest.mark.parametrize("drafting", [None, Speculation(3, 1, 2)])
@pytest.mark.parametrize(("seqs", "tokens"), [(1, 16), (8, 64), (12, 700), (256, 2048)])
def test_the_first_sizes_are_some_of_all_and_hold_every_step(seqs: int, tokens: int, drafting: Speculation) -> None:
    made = replace(shapes(seqs, tokens, seqs), drafting=drafting)
    first, every = first_buckets(made), make_buckets(made)
    for few, all_sizes in zip(first, every, strict=True):
        assert {*few} <= {*all_sizes}
        assert few[-1:] == all_sizes[-1:]
    grown, missing = first, missing_sizes(made, first)
    assert sum(map(len, first)) + len(missing) == sum(map(len, every))
    for family, size in missing:
        grown = with_size(grown, family, size)
    assert grown == every
    assert missing_sizes(made, every) == []


@pytest.mark.parametrize(("tokens", "scored", "name"), [(3, 4, "max_num_batched_tokens"), (4, 3, "max_scored")])
def test_budgets_hold_a_row_of_every_slot(tokens, scored, name) -> None:
    with pytest.raises(ParameterError) as error:
        shapes(4, tokens, scored)
    assert error.value.param == name
