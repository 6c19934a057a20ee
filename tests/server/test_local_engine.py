"""The server before a LocalEngineClient, over the simulated device: many clients at once, and every way to leave."""

import asyncio
import random

import pytest

from tests.engine.reading import until
from tests.llm import simulated
from tests.server.conftest import Local


async def _one_client(local: Local, rng: random.Random, i: int) -> str:
    """Streams a completion, in one of the ways that clients do; returns how it ended."""
    prompt = f"{rng.choice(['hello world', 'hello', 'abc'])} {i % 7}"
    n, seed, leave = rng.choice([1, 1, 1, 3]), rng.randrange(5), rng.choice(["end", "end", "close", "cancel", "stop"])
    ids = local.tokenizer.encode(prompt)
    length = rng.randrange(2, 40)
    right = [local.tokenizer.decode(simulated.right_tokens(ids, length, seed=seed, index=j)) for j in range(n)]
    stop = next((c for c in right[0][1:] if c.isascii() and c.isprintable()), "zz") if leave == "stop" else None
    body = {"model": "m", "prompt": prompt, "max_tokens": length, "n": n, "seed": seed, "stop": stop, "temperature": 1}
    texts, reasons = [""] * n, [None] * n
    stream = await local.client.completions.create(stream=True, **body)
    left_after = rng.randrange(1, 8)
    async for chunk in stream:
        for choice in chunk.choices:
            assert reasons[choice.index] is None
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
        left_after -= 1
        if leave == "close" and not left_after:
            await stream.close()
            return leave
        if leave == "cancel" and not left_after:
            raise asyncio.CancelledError
    for text, reason, whole in zip(texts, reasons, right, strict=True):
        ended = whole.find(stop) if stop else -1
        assert text == (whole if ended < 0 else whole[:ended])
        assert reason == ("length" if ended < 0 else "stop")
    return leave


@pytest.mark.long
async def test_two_hundred_streams_that_end_in_every_way_leave_no_block_behind(
    serve_local, caplog: pytest.LogCaptureFixture
) -> None:
    local: Local = await serve_local(max_num_seqs=64)
    rng = random.Random(7)
    tasks = [asyncio.create_task(_one_client(local, random.Random(rng.random()), i)) for i in range(200)]
    for task in rng.sample(tasks, 30):
        asyncio.get_running_loop().call_later(rng.random(), task.cancel)
    ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 100)
    wrong = [end for end in ends if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError)]
    assert not wrong, wrong[0]
    assert {"end", "close", "stop"} <= {end for end in ends if isinstance(end, str)}
    await until(lambda: local.engine.stats().scheduler.running + local.engine.stats().scheduler.waiting == 0)
    assert local.engine.stats().kv.blocks_used == 0
    assert local.engine.stats().scheduler.preemptions > 0
    assert not local.engine._streams.request_ids
    assert not local.engine._streams._sequence_ids._by_id
    # The client's own library complains of streams that it was told to leave; the server must not.
    assert not [record for record in caplog.records if record.name.startswith(("jaxinfer", "aiohttp"))]
    assert local.engine._engine._submitted.total == 0
