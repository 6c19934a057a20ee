"""Which shard a request goes to, against the rule: the least of uncached tokens and tokens of running sequences."""

from typing import Any

import numpy as np
import pytest

from jaxinfer.engine.core import EngineCore
from tests.engine.small import RecordingRunner, ask, run, sequence_of, small_core, small_shapes
from tests.engine.stepping import step_deltas

BLOCK = 4


def core_of(shards: int, **changes: Any) -> EngineCore:
    sizes = {"blocks": 1000, "max_num_seqs": 32, "max_num_batched_tokens": 64, "max_scored": 32, "max_model_len": 200}
    return small_core(RecordingRunner(small_shapes(shards=shards, **{**sizes, **changes})))


def tokens_by_shard(core: EngineCore) -> list[int]:
    tokens = [0] * core.runner.shapes.shards
    for sequence in core.scheduler.state.running:
        tokens[sequence.kv.shard] += sequence.num_known
    return tokens


class Prefixes:
    """Whole blocks of prompts that each shard has computed."""

    def __init__(self, shards: int):
        self._seen: list[set[tuple[int, ...]]] = [set() for _ in range(shards)]

    def add(self, shard: int, prompt: list[int]) -> None:
        self._seen[shard] |= {tuple(prompt[:end]) for end in range(BLOCK, len(prompt) + 1, BLOCK)}

    def cached(self, shard: int, prompt: list[int]) -> int:
        ends = range(BLOCK, len(prompt), BLOCK)  # the last token is computed in any case
        return max((end for end in ends if tuple(prompt[:end]) in self._seen[shard]), default=0)


@pytest.mark.parametrize("shards", [2, 3])
def test_a_request_goes_where_it_costs_least(shards: int) -> None:
    rng, prefixes = np.random.default_rng(shards), Prefixes(shards)
    core = core_of(shards)
    systems = [rng.integers(0, 61, length).tolist() for length in (8, 20, 40)]
    chosen, passed_over = [0] * shards, 0
    for number in range(150):
        prompt = [*systems[rng.integers(0, 3)], *rng.integers(0, 61, rng.integers(1, 12)).tolist()]
        held = tokens_by_shard(core)
        hits = [prefixes.cached(shard, prompt) for shard in range(shards)]
        costs = [(len(prompt) - hit + tokens, -hit) for hit, tokens in zip(hits, held, strict=True)]
        core.add_request(ask(str(number), prompt, int(rng.integers(2, 30))))
        step_deltas(core)
        sequence = sequence_of(core, str(number))
        assert sequence.kv.shard == costs.index(min(costs))
        assert sequence.cached_tokens == hits[sequence.kv.shard]
        prefixes.add(sequence.kv.shard, prompt)
        chosen[sequence.kv.shard] += 1
        passed_over += hits[sequence.kv.shard] < max(hits)
    assert min(chosen) > 20
    assert 0 < passed_over < 50, "a longer prefix elsewhere is sometimes worth less than the load there, not often"
    run(core)


def test_a_common_prefix_does_not_draw_all_requests_to_one_shard() -> None:
    core = core_of(2)
    system = [1, 2, 3, 4]
    core.add_request(ask("first", [*system, 9], 2))
    run(core)
    for number in range(32):
        core.add_request(ask(str(number), [*system, *[(number * 7 + i) % 60 for i in range(10)]], 100))
        step_deltas(core)
    shards = [sequence.kv.shard for sequence in core.scheduler.state.running]
    assert [shards.count(0), shards.count(1)] == [16, 16]


@pytest.mark.parametrize(("load", "shard"), [(8, 1), (18, 0)])
def test_a_cached_prefix_of_twelve_tokens_is_worth_less_than_a_greater_load(load: int, shard: int) -> None:
    core = core_of(2)
    prompt = list(range(1, 14))
    for name, tokens in (("other", [0] * 30), ("first", prompt)):
        core.add_request(ask(name, tokens, 2))
        step_deltas(core)
    assert sequence_of(core, "first").kv.shard == 1
    run(core)
    for name, length in (("zero", 100), ("one", 99 + load)):
        core.add_request(ask(name, length, 20))
        step_deltas(core)
    core.add_request(ask("again", [*prompt, 40], 4))
    while sequence_of(core, "again").slot < 0:
        step_deltas(core)
    assert tokens_by_shard(core)[1] > 0
    assert sequence_of(core, "again").kv.shard == shard
