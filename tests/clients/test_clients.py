"""The demo model behind `jaxinfer serve`, used by real clients, each in an environment with its own pins."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_commands import REAL, Running
from tests.clients.environments import UnavailableError, cache_folder, command, ensure, plain_variables
from tests.clients.manifest import Client, read_manifest

CLIENTS = read_manifest()
IN_CI = bool(os.environ.get("CI"))
SECONDS_TO_RUN = 300

# An environment may have to be fetched first.
pytestmark = [pytest.mark.clients, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of one server for all clients."""
    running = Running(REAL, "demo", "--max-num-seqs", "4")
    yield running.url
    running.process.terminate()
    running.process.communicate(timeout=30)


@pytest.mark.parametrize("client", CLIENTS, ids=[client.name for client in CLIENTS])
def test_a_client(client: Client, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if IN_CI and not client.ci:
        pytest.skip(f"{client.title} is left out of CI: ci = false in clients.toml")
    folder = environment_of(client)
    line = [*command(client, folder, tmp_path), request.getfixturevalue("url"), "demo"]
    done = subprocess.run(
        line, env=plain_variables(), cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=SECONDS_TO_RUN, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, f"{client.title}: {' '.join(line)}\n{done.stdout}"


def environment_of(client: Client) -> Path:
    """The folder of the client's environment. Where it cannot be made the test is skipped, and in CI it fails."""
    try:
        return ensure(client.environment, cache_folder())
    except UnavailableError as error:
        if IN_CI:
            raise
        pytest.skip(f"no environment for {client.title}: {error}")
