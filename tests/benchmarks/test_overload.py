"""What the overload benchmark makes of outcomes."""

import pytest

from benchmarks.overload import Outcome, figures


def served(came: float, first_token: float) -> Outcome:
    return Outcome(came, 200, first_token, None, True)


def refused(came: float, retry_after: float) -> Outcome:
    return Outcome(came, 429, None, retry_after, False)


def test_only_what_came_once_the_queue_had_settled_counts() -> None:
    outcomes = [served(1, 9), refused(11, 6), served(12, 4), refused(13, 2), served(14, 2), refused(19, 7)]
    found = figures(2.0, outcomes, settle=10, seconds=20)
    assert found["goodput_a_second"] == pytest.approx(0.2)
    assert found["refused"] == pytest.approx(3 / 5)
    assert found["first_token_seconds"]["most"] == 4
    assert found["retry_after_over_wait"] == {"median": 1.25, "least": 1.0, "most": 1.5}
