"""What bodies that are coming may take of memory, all together."""

import asyncio

import pytest

from jaxinfer.server.body_budget import BodyBudget, BodyShare
from jaxinfer.serving.errors import RequestError


async def test_a_body_may_be_refused_in_the_moment_in_which_its_time_is_over():
    """A timeout that has expired cannot be set anew: the body that took its memory failed with it."""
    share, leaving, gone = BodyShare(BodyBudget(100)), asyncio.Event(), asyncio.Event()

    async def reading() -> bytes:
        try:
            await asyncio.sleep(10)
        finally:
            leaving.set()
            await gone.wait()
        return b""

    watched = asyncio.create_task(share.watched(reading, 0.01))
    await leaving.wait()
    share.refuse()
    gone.set()
    with pytest.raises(RequestError, match="no memory for more bodies"):
        await watched
