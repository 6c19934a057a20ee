"""Lines for logs while an engine is built."""

import pytest

from jaxinfer.console.progress import BuildLines


def test_a_long_stage_is_told_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with BuildLines() as lines:
        lines.loaded(2**20, 2**21)
        for done, later in enumerate((101, 105, 112, 115, 121, 140), start=1):
            now = later
            lines.compiled("decode 8", done, 6, 1.0, done == 1)
    assert capsys.readouterr().err.splitlines() == [
        "loading weights: 2 MiB",
        "preparing 6 programs",
        "3 of 6 programs",
        "1 of 6 programs came from the cache",
        "ready",
    ]
