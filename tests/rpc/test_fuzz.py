"""A few of the calls that `python -m tests.rpc.fuzz` makes by the ten thousand."""

from pathlib import Path

import pytest

from tests.rpc import fuzz


@pytest.mark.parametrize("count", [320, pytest.param(4_000, marks=pytest.mark.long)])
async def test_no_status_blames_the_server(tmp_path: Path, count: int) -> None:
    found = await fuzz.run(tmp_path / "model", count, seed=2)
    assert found.wrong == []
    assert sum(found.statuses.values()) == count
    assert found.statuses["OK"] > count // 10
    assert found.statuses["INVALID_ARGUMENT"] > count // 10
