"""The demo model behind `jaxinfer serve`, used by real clients, each in an environment with its own pins."""

import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from tests.cli.command_line import REAL, Running
from tests.clients.environments import UnavailableError, cache_folder, command, ensure, plain_variables
from tests.clients.manifest import Client, Environment, read_manifest

CLIENTS = read_manifest()
IN_CI = bool(os.environ.get("CI"))
SECONDS_TO_RUN = 300

# An environment may have to be fetched first.
pytestmark = [pytest.mark.clients, pytest.mark.timeout(1200)]


class Addresses(NamedTuple):
    """Where the server listens."""

    url: str
    grpc: str


@pytest.fixture(scope="module")
def served() -> Iterator[Addresses]:
    """One server for all clients."""
    running = Running(REAL, "demo", "--max-num-seqs", "4", "--grpc-port", "0")
    assert running.process.stdout is not None
    grpc = re.search(r"gRPC at ([\d.]+:\d+): .*VllmEngine", running.process.stdout.readline())
    assert grpc is not None, "VllmEngine is not served: install the extra `gateway`"
    yield Addresses(running.url, grpc[1])
    running.process.terminate()
    running.process.communicate(timeout=30)


@pytest.fixture(scope="module")
def environments(request: pytest.FixtureRequest) -> dict[Environment, Path | UnavailableError]:
    """The folder of each environment that a selected test needs, or why there is none. Two are made at a time."""
    selected = [item.name for item in request.session.items if item.path == request.path]
    clients = [client for client in CLIENTS if f"test_a_client[{client.name}]" in selected]
    wanted = {client.environment for client in clients if not left_out(client)}
    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(wanted, pool.map(make, wanted), strict=True))


def make(environment: Environment) -> Path | UnavailableError:
    try:
        return ensure(environment, cache_folder())
    except UnavailableError as error:
        return error


def left_out(client: Client) -> bool:
    return IN_CI and not client.ci


@pytest.mark.parametrize("client", CLIENTS, ids=[client.name for client in CLIENTS])
def test_a_client(client: Client, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if left_out(client):
        pytest.skip(f"{client.title} is left out of CI: ci = false in clients.toml")
    made = request.getfixturevalue("environments")[client.environment]
    if isinstance(made, UnavailableError):
        unavailable(client, made)
    served: Addresses = request.getfixturevalue("served")
    line = [*command(client, made, tmp_path), served.url, "demo"]
    variables = {**plain_variables(), "JAXINFER_GRPC": served.grpc}
    done = subprocess.run(
        line, env=variables, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=SECONDS_TO_RUN, check=False,
    )  # fmt: skip
    print(done.stdout)
    if done.returncode:
        pytest.fail(f"{client.title}: `{' '.join(line)}` ends with status {done.returncode}", pytrace=False)


def unavailable(client: Client, reason: UnavailableError) -> NoReturn:
    """Ends a test whose environment cannot be made: in CI it fails, elsewhere it is skipped."""
    text = f"no environment for {client.title}: {reason}"
    if IN_CI:
        pytest.fail(text, pytrace=False)
    pytest.skip(text)
