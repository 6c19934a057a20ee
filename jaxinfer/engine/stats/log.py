"""A line of statistics every few seconds while there is work, as vLLM's."""

import asyncio
import logging
from collections.abc import Callable

from jaxinfer.engine.stats.counters import EngineStats

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
    present = now.scheduler.running or now.scheduler.waiting
    return bool(present or (now.core.steps, now.core.prompt_tokens) != (before.core.steps, before.core.prompt_tokens))


def stats_line(before: EngineStats, now: EngineStats, seconds: float) -> str:
    """Return a line on the throughput between two readings that are `seconds` apart, and on the present state.

    Prompt tokens are those that were computed. The hit rate is of the prompts that got a slot in that time.
    """
    prompt = (now.steps.prefill_tokens - before.steps.prefill_tokens) / seconds
    generation = (now.core.generation_tokens - before.core.generation_tokens) / seconds
    looked_up = now.admission.prefix_queries - before.admission.prefix_queries
    hits = (now.admission.prefix_hits - before.admission.prefix_hits) / looked_up if looked_up else 0.0
    return (
        f"prompt {prompt:.1f} tokens/s, generation {generation:.1f} tokens/s, running {now.scheduler.running}, "
        f"waiting {now.scheduler.waiting}, KV cache {now.kv.blocks_used / max(now.kv.blocks_total, 1):.1%} used, "
        f"prefix cache hits {hits:.1%}"
    )
