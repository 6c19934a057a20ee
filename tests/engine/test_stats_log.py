"""The line of statistics: what it says, and that it is silent without work."""

import asyncio
import logging

from jaxinfer.engine.stats.log import LOGGER, log_stats, stats_line
from tests.engine.flat_stats import stats_of, with_values

IDLE = stats_of(kv_blocks_total=100)


def test_rates_are_of_the_time_between_two_readings() -> None:
    before = with_values(IDLE, prefill_tokens=100, generation_tokens=50, prefix_queries=10, prefix_hits=10)
    counted = {"prefill_tokens": 300, "generation_tokens": 80, "prefix_queries": 50, "prefix_hits": 20}
    now = with_values(IDLE, running=3, waiting=2, kv_blocks_used=25, **counted)
    assert stats_line(before, now, 10.0) == (
        "prompt 20.0 tokens/s, generation 3.0 tokens/s, running 3, waiting 2, KV cache 25.0% used, "
        "prefix cache hits 25.0%"
    )


async def test_a_line_comes_while_there_is_work_and_none_after(caplog) -> None:
    readings = iter([IDLE, IDLE, with_values(IDLE, running=1, steps=1), with_values(IDLE, steps=2)])
    last = with_values(IDLE, steps=2)
    task = asyncio.create_task(log_stats(lambda: next(readings, last), 0.001))
    while next(readings, None) is not None or len(caplog.records) < 1:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)
    task.cancel()
    lines = [record for record in caplog.records if record.name == LOGGER]
    assert 1 <= len(lines) <= 2
    assert all(record.levelno == logging.INFO for record in lines)
