"""A line of statistics every few seconds while there is work, as vLLM's."""

import asyncio
import logging
from collections.abc import Callable

from jaxinfer.engine.types import EngineStats

LOGGER = "jaxinfer.stats"
"""Its lines come whatever --log-level says; --disable-log-stats ends them."""

INTERVAL_SECONDS = 10.0

log = logging.getLogger(LOGGER)


async def log_stats(read: Callable[[], EngineStats], seconds: float = INTERVAL_SECONDS) -> None:
    """Logs until it is cancelled. read: a reading of now. seconds: between lines."""
    clock = asyncio.get_running_loop().time
    log.setLevel(logging.INFO)
    before, then = read(), clock()
    while True:
        await asyncio.sleep(seconds)
        now, at = read(), clock()
        if had_work(before, now):
            log.info("%s", stats_line(before, now, at - then))
        before, then = now, at


def had_work(before: EngineStats, now: EngineStats) -> bool:
    """True where requests were there, at the end or between two readings."""
    return bool(now.running or now.waiting or now.steps != before.steps or now.prompt_tokens != before.prompt_tokens)


def stats_line(before: EngineStats, now: EngineStats, seconds: float) -> str:
    """Return a line on the throughput between two readings that are `seconds` apart, and on the present state.

    Prompt tokens are those that were computed. The hit rate is of the prompts that got a slot in that time.
    """
    prompt = (now.prefill_tokens - before.prefill_tokens) / seconds
    generation = (now.generation_tokens - before.generation_tokens) / seconds
    looked_up = now.prefix_queries - before.prefix_queries
    hits = (now.prefix_hits - before.prefix_hits) / looked_up if looked_up else 0.0
    return (
        f"prompt {prompt:.1f} tokens/s, generation {generation:.1f} tokens/s, running {now.running}, "
        f"waiting {now.waiting}, KV cache {now.kv_blocks_used / max(now.kv_blocks_total, 1):.1%} used, "
        f"prefix cache hits {hits:.1%}"
    )
