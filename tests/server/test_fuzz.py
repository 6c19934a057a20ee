"""A few of the requests that `python -m tests.server.fuzz` sends by the ten thousand."""

from pathlib import Path

import pytest

from tests.server import fuzz


@pytest.mark.parametrize("make", [fuzz.posts, fuzz.frames])
@pytest.mark.parametrize("count", [320, pytest.param(8_000, marks=pytest.mark.long)])
async def test_nothing_is_a_failure_of_the_server(tmp_path: Path, make, count: int) -> None:
    found = await fuzz.run(tmp_path / "model", make, count, seed=2)
    assert found.wrong == []
    assert sum(found.statuses.values()) == count
    assert found.statuses[400] > count // 10
