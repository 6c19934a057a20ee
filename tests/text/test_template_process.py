"""The process that renders templates stalls or dies: the request is told to come back, and the next one is served."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import psutil
import pytest

from jaxinfer.errors import ParameterError, WorkerLostError
from jaxinfer.text.template.template_process import TemplateLimits, TemplateProcess

WALL_SECONDS = 4.0
"""On a busy machine a process takes more than a second to start, and that counts."""
NOW = datetime(2026, 1, 1)
LARGE = "a" * 2**20
"""More than a pipe holds."""


@pytest.fixture
def process() -> Iterator[TemplateProcess]:
    made = TemplateProcess("{{ word }}", TemplateLimits(wall_seconds=WALL_SECONDS))
    assert made.render({"word": "hi"}, NOW) == "hi"
    yield made
    made.close()


def worker(process: TemplateProcess) -> psutil.Process:
    """The one that renders for it now."""
    assert process._process._process is not None
    return psutil.Process(process._process._process.pid)


@pytest.mark.parametrize("word", ["hi", LARGE])
def test_one_that_stalls_is_replaced(process: TemplateProcess, word: str) -> None:
    """Also where the job does not fit into the pipe, and is never read."""
    stopped = worker(process)
    stopped.suspend()
    with pytest.raises(WorkerLostError, match=f"did not answer within {WALL_SECONDS:g} s"):
        process.render({"word": word}, NOW)
    assert not stopped.is_running()
    assert process.render({"word": word}, NOW) == word


def test_one_that_is_killed_while_it_renders_is_not_the_requests_fault(process: TemplateProcess) -> None:
    killed = worker(process)
    killed.suspend()
    killed.kill()
    asked: list[Any] = []

    def poll_before_it_ends() -> None:
        asked.append(None)

    assert process._process._process is not None
    process._process._process.poll = poll_before_it_ends  # as if it ended a moment later
    with pytest.raises(WorkerLostError, match="status -9"):
        process.render({"word": LARGE}, NOW)
    assert asked
    assert process.render({"word": "again"}, NOW) == "again"


def test_one_that_is_killed_between_two_jobs_is_replaced_at_once(process: TemplateProcess) -> None:
    killed = worker(process)
    killed.kill()
    killed.wait()
    assert process.render({"word": "again"}, NOW) == "again"


def test_what_a_template_refuses_is_the_requests_fault() -> None:
    process = TemplateProcess("{{ raise_exception('no') }}", TemplateLimits())
    with pytest.raises(ParameterError, match="no"):
        process.render({}, NOW)
    process.close()


def test_where_no_process_can_be_started_the_request_may_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise OSError(24, "Too many open files")

    process = TemplateProcess("{{ word }}", TemplateLimits())
    with monkeypatch.context() as patch:
        patch.setattr("subprocess.Popen", refuse)
        with pytest.raises(WorkerLostError, match="Too many open files"):
            process.render({"word": "hi"}, NOW)
    assert process.render({"word": "hi"}, NOW) == "hi"
    process.close()
