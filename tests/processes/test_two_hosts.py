"""An engine over several hosts, each with processes of its own, answers as one device does."""

import asyncio
import functools
from pathlib import Path

import pytest

from tests.processes.host_group import HostGroup, hosts_of
from tests.processes.hosts_requests import Choices, ask, check, draw_requests, model_folder, right_answers

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SIZES = ("--dtype", "float32", "--max-num-seqs", "32", "--max-num-batched-tokens", "64")
DRAFTS = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}')
REQUESTS = draw_requests(200, seed=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("hosts") / "model")


@functools.cache
def right(model: Path) -> list[Choices]:
    return right_answers(model, REQUESTS)


@pytest.mark.parametrize(
    ("num_hosts", "mesh"),
    [(2, ("-pp", "2", "-tp", "4", *DRAFTS)), (4, ("-tp", "8"))],
    ids=["two hosts, pp 2 of tp 4, drafts", "four hosts, tp 8"],
)
async def test_two_hundred_requests_at_once(num_hosts: int, mesh: tuple[str, ...], model: Path, tmp_path: Path) -> None:
    async with hosts_of(model, tmp_path, num_hosts, *SIZES, *mesh) as group:
        for host in group.hosts:
            assert [await host.status(path) for path in ("/healthz", "/readyz")] == [200, 200]
        async with group.session.post(f"{group.hosts[1].url}/v1/completions", json=REQUESTS[0]) as response:
            assert response.status == 404
            told = (await response.json())["error"]["message"]
        assert told == f"this is host 1 of {num_hosts}: requests go to host 0"
        found = await asyncio.gather(*(ask(group.session, group.hosts[0].url, body) for body in REQUESTS))
        assert {answer.end for answer in found} == {"[DONE]"}
        for body, answer, wanted in zip(REQUESTS, found, right(model), strict=True):
            check(body, answer, wanted)
        await _ends_in_order(group)


async def _ends_in_order(group: HostGroup) -> None:
    """SIGTERM to host 0 ends all."""
    engines = group.engines()
    assert len(engines) == group.num_hosts
    group.hosts[0].process.terminate()
    async with asyncio.timeout(20):
        assert [await host.process.wait() for host in group.hosts] == [0] * group.num_hosts
    assert not [engine for engine in engines if engine.is_running()]
    for host_id in range(group.num_hosts):
        assert "Traceback" not in group.text(host_id)
        assert "ERROR" not in group.text(host_id)
