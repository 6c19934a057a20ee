"""A model of the page rules: counts holders from what live requests say they hold, and compares."""

from collections import Counter

import numpy as np

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.sequence import Request, Status


def live_requests(core: EngineCore, name: str | None = None) -> list[Request]:
    """Every choice that has not ended, or those of one request."""
    groups = core._choices.values() if name is None else [core._choices.get(name, [])]
    return [choice for choices in groups for choice in choices if not choice.finished]


def live_names(core: EngineCore) -> list[str]:
    """Ids of the requests that have not ended, sorted."""
    return sorted({choice.request_id for choice in live_requests(core)})


def check_pages(core: EngineCore) -> None:
    """Asserts the invariant of DESIGN §6 and who holds what, a group at a time."""
    kv = core.scheduler.state.kv
    requests = live_requests(core)
    for group, pool in enumerate(kv.pools):
        held: Counter[int] = Counter()
        owners: Counter[int] = Counter()
        for request in requests:
            pages = [page for page in request.pages[group] if page]
            assert len(pages) == len(set(pages)), "a page twice in one table"
            held.update(pages)
            owners.update(pages)
            held.update(page for shadow_group, page in request.duplicate_pages if shadow_group == group)
        cached = kv.tree.pages(group)
        assert len(cached) == len(set(cached)), "a page twice in the tree"
        free = pool._free
        assert len(free) == len(set(free)), "a page freed twice"
        assert 0 not in free
        assert 0 not in held
        assert 0 not in cached
        assert not set(free) & (set(held) | set(cached)), "a free page is in use"
        for page in range(1, pool.num_pages):
            assert pool.references(page) == held[page]
            assert pool.is_cached(page) == (page in cached)
        evictable = [page for page in cached if not held[page]]
        assert pool.num_evictable == len(evictable)
        assert pool.num_free + pool.num_evictable + pool.num_in_use == pool.num_pages - 1
        assert pool.num_in_use == len(held)
        shared = {page for page, count in owners.items() if count > 1}
        assert all(page in cached or _forked(requests, group, page) for page in shared), "a page in two places"


def check_slots(core: EngineCore) -> None:
    """Asserts that slots and statuses agree."""
    table = core.scheduler.state.table
    placed = [request for request in live_requests(core) if request.slot >= 0]
    assert len({request.slot for request in placed}) == len(placed)
    for request in placed:
        assert table.requests[request.slot] is request
        assert request.status in (Status.RUNNING, Status.DRAINING)
        # (a parent's goal leaves its last token out)
        assert table.computed[request.slot] <= table.total[request.slot]
        assert table.total[request.slot] <= request.limit
        assert table.capacity[request.slot] == len(request.pages[0]) * core.runner.shapes.page_size
    assert table.num_taken == len(placed)


def check_options(core: EngineCore, partial: int | None, kept: int | None) -> None:
    """Asserts that at most `partial` prompts are half computed, and `kept` tokens kept that nobody holds."""
    table = core.scheduler.state.table
    half = [
        r for r in core.scheduler.state.running if table.total[r.slot] - table.computed[r.slot] > table.samples[r.slot]
    ]
    assert partial is None or len(half) <= partial
    for pool in core.scheduler.state.kv.pools:
        assert kept is None or pool.num_evictable * core.runner.shapes.page_size <= kept


def unread(core: EngineCore, group: int) -> np.ndarray:
    """bool [pages, page size]: positions that no step after the one that was just planned reads before it writes them.

    That is every page that is free, the scratch page, and what lies behind the last position in pages in use.
    """
    pool, table, size = core.scheduler.state.kv.pools[group], core.scheduler.state.table, core.runner.shapes.page_size
    used = np.zeros(pool.num_pages, np.int32)
    for request in live_requests(core):
        computed = int(table.computed[request.slot]) if request.slot >= 0 else request.fork_computed
        for i, page in enumerate(request.pages[group]):
            if page:
                used[page] = max(used[page], min(size, computed - i * size))
    used[core.scheduler.state.kv.tree.pages(group)] = size
    return np.arange(size) >= used[:, None]


def _forked(requests: list[Request], group: int, page: int) -> bool:
    holders = [request for request in requests if page in request.pages[group]]
    return len({request.request_id for request in holders}) == 1
