"""Fair sharing where new tenants keep coming: whoever waits has its turn within a bounded number of admissions."""

import itertools
import random
from dataclasses import replace

import pytest

from jaxinfer.engine.scheduler.fair_order import FairOrder
from jaxinfer.engine.scheduler.share import QUANTUM
from jaxinfer.engine.sequence import Sequence
from tests.engine.small import RecordingRunner, ask, run, sequence_of, small_core, small_shapes
from tests.engine.tenants import Watched, asked_by


@pytest.mark.few(3)
@pytest.mark.parametrize("new", [1, 8, 40])
@pytest.mark.parametrize("tokens", [3, 28])
def test_a_user_who_comes_again_is_served_though_new_ones_keep_coming(new: int, tokens: int) -> None:
    """Every newcomer has one request, and `new` of them wait at any time."""
    watched = Watched(fair_share="user", slots=2)
    watched.core.add_request(asked_by("k/back", "first", 20, 28))
    run(watched.core, watched.got)
    for i in range(new):
        watched.core.add_request(asked_by(f"k/new{i}", "r"))
    for i in range(19):
        watched.core.add_request(asked_by("k/back", str(i), 20, tokens))
    seen = len(watched.admitted)
    while sum(name.startswith("k/back") for name in watched.admitted) < 20 and len(watched.admitted) < 2000:
        watched.step()
        for i in range(seen, len(watched.admitted)):
            if "new" in watched.admitted[i]:
                watched.core.add_request(asked_by(f"k/new{new + i}", "r"))
        seen = len(watched.admitted)
    turns = [i for i, name in enumerate(watched.admitted) if name.startswith("k/back")]
    assert len(turns) == 20
    # A turn of the others each, and another for as often as theirs of 11 tokens go into its own.
    longest = max(b - a for a, b in itertools.pairwise(turns))
    assert longest <= (new + 1) * (2 + (20 + tokens) // 11)


class Crowd:
    """A line by itself, in which `size` new tenants wait at any time, each with some requests."""

    def __init__(self, size: int, seed: int, requests_each: int):
        self.core = small_core(
            RecordingRunner(small_shapes(4000, max_model_len=6000)), fair_share="off", max_waiting=10**6
        )
        self.line = FairOrder()
        self.size = size
        self.requests_each = requests_each
        self.draw = random.Random(seed)
        self.waiting: dict[str, int] = {}
        self.number = 0
        self.new = 0

    def push(self, tenant: str, prompt: int, outputs: int) -> None:
        name = f"r{self.number}"
        self.number += 1
        self.core.add_request(replace(ask(name, [1] * prompt, outputs), tenant=(tenant,)))
        sequence = sequence_of(self.core, name)
        sequence.tenant = (tenant,)
        self.line.push(sequence)
        self.waiting[tenant] = self.waiting.get(tenant, 0) + 1

    def admit(self) -> Sequence:
        while sum(name.startswith("new") for name in self.waiting) < self.size:
            for _ in range(self.requests_each):
                self.push(f"new{self.new}", self.draw.randint(1, 40), self.draw.randint(1, 20))
            self.new += 1
        sequence = self.line.peek()
        assert sequence is not None
        self.line.take(sequence)
        self.line.charge(sequence, 0)
        tenant = sequence.tenant[0]
        self.waiting[tenant] -= 1
        if not self.waiting[tenant]:
            del self.waiting[tenant]
        return sequence

    def admissions_until(self, tenant: str) -> int:
        count = 1
        while self.admit().tenant[0] != tenant:
            count += 1
        return count


@pytest.mark.few(9)
@pytest.mark.parametrize("requests_each", [1, 2, 5])
@pytest.mark.parametrize("size", [1, 10])
@pytest.mark.parametrize("seed", range(3))
def test_who_owes_many_rounds_is_served_in_the_end(requests_each: int, size: int, seed: int) -> None:
    """It waits until the others have had as much as it, and no longer: they have a token at least each turn."""
    crowd = Crowd(size, seed, requests_each)
    for _ in range(50):
        crowd.admit()
    debt = 20 * QUANTUM
    crowd.push("heavy", debt, 1)
    assert crowd.admissions_until("heavy") <= 5 * requests_each * (size + 1)
    crowd.push("heavy", 1, 1)
    bound = (size + 1) * requests_each * debt
    assert 20 <= crowd.admissions_until("heavy") <= bound


@pytest.mark.parametrize("debt", [0, 5000])
def test_a_newcomer_goes_behind_no_more_than_who_waits(debt: int) -> None:
    """Though another, who owes much, and one who was charged too much by a guess wait, too."""
    crowd = Crowd(0, 0, 1)
    if debt:
        crowd.push("heavy", debt, 1)
        crowd.admit()
        for _ in range(3):
            crowd.push("heavy", 1, 1)
    guessed: list[Sequence] = []
    for i in range(200):
        crowd.push("flood", 10, 1000 if i < 8 else 5)
    while len(guessed) < 8:
        sequence = crowd.admit()
        if sequence.tenant == ("flood",):
            guessed.append(sequence)
    for sequence in guessed:  # they end after a token each
        sequence.waiting_tokens = sequence.waiting_tokens.repeat(2)[: sequence.prompt_len + 1]
        crowd.line.settle(sequence, sequence.prompt_len)
    for i in range(20):
        crowd.push(f"new{i}", 10, 5)
        assert crowd.admissions_until(f"new{i}") <= 2 + 1 + bool(debt)
