"""How much of what nobody holds the prefix cache keeps."""

import pytest

from jaxinfer.config import CacheConfig
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.step.shapes import KVGroup
from jaxinfer.errors import ParameterError
from tests.engine.ledger import check_blocks
from tests.engine.small import RecordingRunner, ask, run, small_core, small_shapes
from tests.engine.stepping import step_deltas


def served(core: EngineCore, name: str, prompt: list[int]) -> int:
    """Serves a request; returns how much of its prompt was found."""
    core.add_request(ask(name, prompt, 1))
    found = run(core)[name, 0][-1].cached_tokens
    check_blocks(core)
    return found


def prompt(first: int) -> list[int]:
    """Two full blocks and a token."""
    return [*range(first, first + 9)]


@pytest.mark.parametrize(("kept", "found"), [(None, [8, 8, 8]), (16, [0, 8, 8]), (8, [0, 0, 8]), (3, [0, 0, 0])])
def test_the_least_recently_used_go_first(kept, found) -> None:
    core = small_core(kept=kept)
    for i in range(3):
        assert served(core, f"first{i}", prompt(10 * i)) == 0
    kv = core.scheduler.state.kv
    assert kv.pools[0].num_evictable == (6 if kept is None else kept // 4)
    for i in (2, 1, 0):  # from the last: what is found is used again
        lookups = small_core(kept=kept)
        for j in range(3):
            served(lookups, f"first{j}", prompt(10 * j))
        assert served(lookups, "again", prompt(10 * i)) == found[i]


def test_what_is_used_again_stays() -> None:
    core = small_core(kept=16)
    served(core, "a", prompt(0))
    served(core, "b", prompt(10))
    assert served(core, "a again", prompt(0)) == 8
    served(core, "c", prompt(20))
    assert served(core, "b again", prompt(10)) == 0
    assert served(core, "c again", prompt(20)) == 8


def test_what_requests_hold_is_not_counted_and_is_shared() -> None:
    core = small_core(RecordingRunner(small_shapes(100)), kept=0)
    shared = [*range(20)]
    core.add_request(ask("a", shared, 12))
    for _ in range(4):
        step_deltas(core)
    core.add_request(ask("b", shared, 2))
    got = run(core)
    assert got["b", 0][-1].cached_tokens == 16
    assert core.scheduler.state.kv.pools[0].num_free == 99


def test_every_group_keeps_at_most_so_much() -> None:
    shapes = small_shapes(60)
    groups = (KVGroup(None, 60), KVGroup(6, 60))
    core = small_core(RecordingRunner(type(shapes)(**{**vars(shapes), "groups": groups})), kept=12)
    for i in range(4):
        core.add_request(ask(f"r{i}", 20 + i, 6))
        run(core)
        check_blocks(core)
        assert all(pool.num_evictable <= 3 for pool in core.scheduler.state.kv.pools)


def test_all_shards_together_keep_so_much() -> None:
    """The second prompt of each pair goes to the other shard."""
    core = small_core(RecordingRunner(small_shapes(shards=2)), kept=16)
    for first in (0, 20, 40):
        for i in range(2):
            core.add_request(ask(f"{first} {i}", prompt(first + 10 * i), 1))
        run(core)
        check_blocks(core)
    kept = [kv.pools[0].num_evictable for kv in core.scheduler.state.kv_shards]
    assert kept == [2, 2]


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ParameterError, match="at least 0"):
        CacheConfig(prefix_cache_max_tokens=-1)
    with pytest.raises(ParameterError, match="needs enable_prefix_caching"):
        CacheConfig(prefix_cache_max_tokens=100, enable_prefix_caching=False)
