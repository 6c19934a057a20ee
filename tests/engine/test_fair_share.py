"""Fair sharing: whose request is admitted next."""

import math
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.scheduler.fair_order import MAX_IDLE_SHARES, FairOrder
from jaxinfer.engine.scheduler.share import QUANTUM, KeyShare
from jaxinfer.engine.sequence import Sequence
from tests.engine.ledger import check_blocks, live_sequences
from tests.engine.small import Got, RecordingRunner, ask, run, sequence_of, small_core, small_shapes, step, tokens_of
from tests.engine.tenants import Watched, asked_by

POLICIES: list[dict[str, Any]] = [
    {},
    {"scheduling_policy": "sjf", "sjf_tokens_per_second": 0.0},
    {"scheduling_policy": "priority"},
    {"scheduling_policy": "priority", "priority_ageing_seconds": 0.0},
    {"max_num_partial_prefills": 1},
]


def flooded(count: int, **config: Any) -> Watched:
    """One tenant has filled all slots and queued `count` requests more; some steps later nothing has changed."""
    watched = Watched(**config)
    for i in range(4 + count):
        watched.core.add_request(asked_by("flood", str(i), prompt=5 + i % 3, tokens=30 + 3 * (i % 4)))
    for _ in range(8):
        watched.step()
    assert len(watched.core.scheduler.state.running) == 4
    assert watched.core.num_waiting == count
    return watched


@pytest.mark.parametrize("config", POLICIES, ids=lambda config: "-".join(map(str, config.values())) or "fcfs")
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_flood_of_one_key_does_not_hold_up_another(ahead: int, config: dict[str, Any]) -> None:
    empty = flooded(0, ahead=ahead, **config).steps_to_first_token(asked_by("other", "r"))
    watched = flooded(1000, ahead=ahead, **config)
    before = len(watched.admitted)
    steps = watched.steps_to_first_token(asked_by("other", "r"))
    assert "other-r" in watched.admitted[before : before + 2]
    assert steps <= 1.5 * empty


def test_without_fair_sharing_the_flood_goes_first() -> None:
    watched = flooded(100, fair_share="off")
    watched.steps_to_first_token(asked_by("other", "r"))
    assert watched.admitted.index("other-r") == len(watched.admitted) - 1 >= 100


@pytest.mark.parametrize("mode", ["key", "user"])
def test_users_of_a_key_share_it_where_that_is_asked_for(mode: str) -> None:
    """Another user's request comes behind the flood of its key, or before it."""
    watched = Watched(fair_share=mode)
    for i in range(104):
        watched.core.add_request(asked_by("k/flood", str(i), tokens=30))
    for _ in range(8):
        watched.step()
    watched.core.add_request(asked_by("k/other", "r"))
    watched.core.add_request(asked_by("k/flood", "104"))
    while not {"k/other-r", "k/flood-104"} & set(watched.admitted):
        watched.step()
    assert watched.admitted.index("k/other-r") == (4 if mode == "user" else 104)


def test_keys_come_before_users() -> None:
    """Ten users of one key have together what the one user of another has."""
    watched = Watched(fair_share="user", slots=2)
    for i in range(300):
        watched.core.add_request(asked_by(f"many/{i % 10}", str(i)))
        watched.core.add_request(asked_by("one/user", str(i)))
    while len(watched.admitted) < 200:
        watched.step()
    by_key = Counter(name.partition("/")[0] for name in watched.admitted)
    assert abs(by_key["many"] - by_key["one"]) < 30
    by_user = Counter(name.partition("-")[0] for name in watched.admitted if name.startswith("many"))
    assert max(by_user.values()) - min(by_user.values()) <= 1


def test_one_tenant_is_served_in_the_order_of_the_policy() -> None:
    """With one key, requests with and without users are admitted as they are without fair sharing."""
    for config in POLICIES:
        orders = []
        for mode in ("key", "off"):
            watched = Watched(fair_share=mode, blocks=14, **config)
            for i in range(60):
                priority = i % 3 if config.get("scheduling_policy") == "priority" else 0
                tokens, prompt = 1 + i * 7 % 11, 1 + i * 5 % 23
                watched.core.add_request(asked_by(f"k/u{i % 5}", str(i), prompt, tokens, priority))
                watched.step()
            run(watched.core, watched.got)
            orders.append((watched.admitted, watched.core.stats().scheduler.preemptions))
        assert orders[0] == orders[1]


def test_priorities_come_before_shares() -> None:
    watched = Watched(scheduling_policy="priority", priority_ageing_seconds=0.0, slots=2)
    for i in range(40):
        watched.core.add_request(asked_by("flood", str(i), tokens=3, priority=0))
    watched.core.add_request(asked_by("other", "low", priority=1))
    for i in range(3):
        watched.core.add_request(asked_by("flood", f"high{i}", tokens=3, priority=-1))
    while "other-low" not in watched.admitted:
        watched.step()
    assert watched.admitted[:3] == ["flood-high0", "flood-high1", "flood-high2"]
    assert len(watched.admitted) == 44


@pytest.mark.parametrize("blocks", [200, 15])
def test_tenants_of_one_priority_take_nothing_from_each_other(blocks: int) -> None:
    """Whoever was admitted first, though it came later, keeps its slot; short of blocks every request ends."""
    watched = Watched(scheduling_policy="priority", blocks=blocks, slots=3)
    for i in range(120):
        watched.core.add_request(asked_by("flood", str(i), tokens=20))
    names = {f"flood-{i}" for i in range(120)}
    for i in range(300):
        if i % 4 == 0:
            tenant = f"t{i % 7}"
            watched.core.add_request(
                asked_by(tenant, str(i), prompt=1 + i % 11, tokens=1 + i % 13, priority=i % 24 // 12)
            )
            names.add(f"{tenant}-{i}")
        watched.step()
        check_blocks(watched.core)
    run(watched.core, watched.got)
    assert {name for name, _ in watched.got} == names
    assert all(tokens_of(deltas) for deltas in watched.got.values())


def test_who_outranks_only_another_tenants_request_preempts_nobody() -> None:
    watched = Watched(scheduling_policy="priority", slots=2)
    for i in range(20):
        watched.core.add_request(asked_by("flood", str(i), tokens=20))
    for _ in range(4):
        watched.step()
    watched.core.add_request(asked_by("other", "late", tokens=20))
    while "other-late" not in watched.admitted:
        watched.step()
    run(watched.core, watched.got)
    assert watched.core.stats().scheduler.preemptions == 0


def test_what_was_preempted_is_charged_once_and_resumes_before_others() -> None:
    core = small_core(RecordingRunner(small_shapes(blocks=13)), caching=False, watermark=0.0)
    for i in range(3):
        core.add_request(replace(ask(f"a{i}", 5, 25), tenant=("a",)))
    charged, preempted = {}, set()
    got: Got = {}
    while core.has_work():
        step(core, got)
        for sequence in live_sequences(core):
            if sequence.charged:
                assert charged.setdefault(sequence.request_id, sequence.charged) == sequence.charged
            if sequence.preemptions:
                preempted.add(sequence.request_id)
        if len(preempted) == 1 and "b" not in charged and not any(name == "b" for name, _ in got):
            name = next(iter(preempted))
            if sequence_of(core, name).slot < 0 and not live_sequences(core, "b"):
                core.add_request(replace(ask("b", 5, 2), tenant=("b",)))
                assert core.scheduler.state.queue.peek() is sequence_of(core, name)
    assert preempted
    assert ("b", 0) in got


class Rounds:
    """The rule by itself: what each tenant has spent, and who is next; every step looks at everybody."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.turn: dict[str, int] = {}
        self.queue: list[tuple[int, str]] = []
        self.start = 0.0
        self.turns = 0
        self.joined: set[str] = set()

    def arrive(self, number: int, tenant: str) -> None:
        if all(waiting != tenant for _, waiting in self.queue):
            waiting = {waiting for _, waiting in self.queue}
            if waiting:
                first = self.first(waiting)
                self.start = min(self.start, self.spent[first] + QUANTUM * (first in self.joined))
            self.spent[tenant] = max(self.spent.get(tenant, self.start), self.start)
            self.turn[tenant] = self.turns - 1
            self.joined.add(tenant)
        self.queue.append((number, tenant))

    def next(self) -> int | None:
        if not self.queue:
            return None
        return self.oldest(self.first({tenant for _, tenant in self.queue}))

    def first(self, tenants: set[str]) -> str:
        lowest = min(self.spent[tenant] // QUANTUM for tenant in tenants)
        due = [tenant for tenant in tenants if self.spent[tenant] // QUANTUM == lowest]
        longest = min(self.turn[tenant] for tenant in due)
        return min((tenant for tenant in due if self.turn[tenant] == longest), key=self.oldest)

    def oldest(self, tenant: str) -> int:
        return min(number for number, other in self.queue if other == tenant)

    def serve(self, number: int, cost: int) -> None:
        tenant = next(tenant for n, tenant in self.queue if n == number)
        sharers = len({waiting for _, waiting in self.queue})
        self.queue.remove((number, tenant))
        self.start = max(self.start + math.ceil(cost / sharers), self.spent[tenant])
        self.joined.discard(tenant)
        self.spent[tenant] += cost
        self.turns += 1
        self.turn[tenant] = self.turns


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(20, 40), st.integers(0, 40)), min_size=60, max_size=150),
    st.data(),
)
@settings(max_examples=40, deadline=None)
def test_the_line_follows_the_rule(steps: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """Random requests come, are admitted, run on together and end, or are aborted while they wait."""
    core = small_core(fair_share="off")
    line, rule = FairOrder(), Rounds()
    alive: list[tuple[Sequence, int]] = []
    for number, (tenant, prompt, outputs) in enumerate(steps):
        core.add_request(replace(ask(f"r{number}", prompt, 7), tenant=(f"t{tenant}",)))
        sequence = sequence_of(core, f"r{number}")
        sequence.tenant = (f"t{tenant}",)
        line.push(sequence)
        rule.arrive(sequence.arrival, f"t{tenant}")
        for _ in range(data.draw(st.integers(0, 2))):
            found, wanted = line.peek(), rule.next()
            assert (None if found is None else found.arrival) == wanted
            if found is None or wanted is None:
                break
            line.take(found)
            line.charge(found, 0)
            rule.serve(wanted, found.charged)
            alive.append((found, outputs))
        if len(alive) > 5:
            done, made = alive.pop(0)
            done.waiting_tokens = done.waiting_tokens.repeat(2)[: done.prompt_len + made]
            rule.spent[done.tenant[0]] += done.prompt_len + done.num_outputs - done.charged
            # What a tenant owes is kept; what it is owed is not, once nothing of its is under way.
            line.settle(done, done.prompt_len)
            busy = {other.tenant[0] for other, _ in alive} | {waiting for _, waiting in rule.queue}
            if done.tenant[0] not in busy and rule.spent[done.tenant[0]] <= rule.start:
                del rule.spent[done.tenant[0]]
                rule.turn.pop(done.tenant[0], None)


@pytest.mark.long
@given(st.lists(st.tuples(st.integers(5, 35), st.integers(1, 10)), min_size=10, max_size=10), st.integers())
@settings(max_examples=3, deadline=None)
def test_ten_clients_that_have_work_are_served_alike(sizes: list[tuple[int, int]], seed: int) -> None:
    """Whatever the sizes of their requests, and however many each has queued."""
    draw = random.Random(seed)
    watched = Watched(slots=16, tokens=160, blocks=300, caching=False)
    served: Counter[int] = Counter()
    named: dict[str, tuple[int, int]] = {}
    queued: Counter[int] = Counter()
    while min(served[i] for i in range(10)) < 4000:
        for i, (prompt, tokens) in enumerate(sizes):
            while queued[i] < (60 if i % 3 == 0 else 20):
                request = asked_by(f"t{i}", str(len(named)), draw.randint(1, prompt), draw.randint(1, tokens))
                named[request.request_id] = i, len(request.prompt_token_ids)
                watched.core.add_request(request)
                queued[i] += 1
        watched.step()
        for (name, _), deltas in list(watched.got.items()):
            if deltas[-1].finish_reason is not None:
                tenant, prompt_len = named[name]
                served[tenant] += prompt_len + len(tokens_of(deltas))
                queued[tenant] -= 1
                del watched.got[name, 0]
    assert max(served.values()) <= 1.1 * min(served.values()), served


@given(st.integers())
@settings(max_examples=3, deadline=None)
def test_nobody_starves_under_random_arrivals(seed: int) -> None:
    """While a request waits, no other tenant is charged much more than its own."""
    draw = random.Random(seed)
    watched = Watched(slots=4, caching=False)
    came: dict[str, Counter[tuple[str, ...]]] = {}
    # A round, and what was overspent in it, of either; and estimates that were corrected since.
    bound = 2 * QUANTUM + 6 * (20 + 14 + 14)
    for i in range(250):
        burst = 25 if i % 50 == 0 else int(draw.random() < 0.3)
        for j in range(burst):
            tenant = "t0" if burst > 1 else f"t{draw.randint(1, 9)}"
            request = asked_by(tenant, f"{i}.{j}", draw.randint(1, 20), draw.randint(1, 14))
            came[request.request_id] = watched.charged.copy()
            watched.core.add_request(request)
        watched.step()
        for sequence in live_sequences(watched.core):
            if sequence.scheduled_at is None:
                since = watched.charged - came[sequence.request_id]
                assert max(since.values(), default=0) - since[sequence.tenant] <= bound
    run(watched.core, watched.got)
    assert {name for name, _ in watched.got} == set(came)


def num_shares(line: FairOrder) -> int:
    """Shares that are remembered."""
    parts = [part for level in line._levels.values() for part in level.parts.values()]
    return len(parts) + sum(len(part.users.parts) for part in parts if isinstance(part, KeyShare))


def test_idle_tenants_are_forgotten() -> None:
    """Those that owe nothing at once; of the others a bounded number is kept."""
    core: EngineCore = small_core(max_waiting=10_000)
    line = core.scheduler.state.queue._line
    assert isinstance(line, FairOrder)
    for i in range(3 * MAX_IDLE_SHARES):
        core.add_request(replace(ask(f"r{i}", 2, 1), tenant=(f"t{i}",)))
        if i % 4 == 3:
            run(core)
    assert num_shares(line) <= MAX_IDLE_SHARES + 2
    before = num_shares(line)
    for i in range(100):
        core.add_request(replace(ask(f"s{i}", 2, 1), tenant=("same",)))
        run(core)
    assert num_shares(line) <= before + 1


def test_idleness_earns_nothing() -> None:
    """A tenant that comes back after others were served for long has its turns with them, and no more."""
    watched = Watched(slots=2)
    watched.core.add_request(asked_by("idle", "first"))
    run(watched.core, watched.got)
    for i in range(400):
        watched.core.add_request(asked_by("busy", str(i)))
    while len(watched.admitted) < 200:
        watched.step()
    for i in range(100):
        watched.core.add_request(asked_by("idle", str(i)))
    start = len(watched.admitted)
    while len(watched.admitted) < start + 100:
        watched.step()
    counts = Counter(name.partition("-")[0] for name in watched.admitted[start:])
    assert abs(counts["idle"] - counts["busy"]) <= 2 * QUANTUM // 11
