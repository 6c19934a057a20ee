"""SIGINT and SIGTERM while an engine is built, while it serves, and while it drains."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from http.client import IncompleteRead
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from tests.cli.command_line import ENVIRONMENT, SIMULATED, SLOW_STEPS, Running, slow
from tests.material import REPOSITORY
from tests.text.folders import byte_level_folder

BUILD, BRISK_STEPS, STUCK = slow("build"), slow("brisk steps"), slow("step")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return byte_level_folder(tmp_path / "model")


@pytest.mark.few(1)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["generate", "--prompt", "a"]])
def test_a_signal_ends_a_build_at_once(folder: Path, command: list[str], number: int, status: int) -> None:
    process = subprocess.Popen(
        [*BUILD, command[0], str(folder), *command[1:]],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY, env=ENVIRONMENT,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "loading weights: 1 MiB\n"
        process.send_signal(number)
        assert process.wait(30) == status  # the build itself would take 60 s
        assert process.communicate() == ("", "")
    finally:
        process.kill()


def test_a_build_on_a_terminal_gives_the_cursor_back(folder: Path) -> None:
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [*BUILD, "generate", str(folder), "--prompt", "a"],
        stdout=subprocess.DEVNULL, stderr=theirs, cwd=REPOSITORY, env={**ENVIRONMENT, "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while b"loading weights" not in shown:
        shown += os.read(ours, 4096)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    while b"\x1b[?25h" not in shown:
        shown += os.read(ours, 4096)
    assert b"\x1b[?25l" in shown
    assert b"Traceback" not in shown
    os.close(ours)


@pytest.mark.long
@pytest.mark.parametrize(("second", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_says_what_runs_and_the_second_ends_it(folder: Path, second: int, status: int) -> None:
    """Clients are told in the stream. A step is a fifth of a second: the two would run on for twelve seconds, and those
    that are aborted have ended long before the two seconds that they are given."""
    server = Running(BRISK_STEPS, str(folder), "--max-num-seqs", "4")
    try:
        body = b'{"prompt": ["a", "b"], "max_tokens": 60, "stream": true}'
        headers = {"Content-Type": "application/json"}
        with urlopen(Request(server.url + "/v1/completions", body, headers), timeout=60) as response:
            response.readline()
            server.process.send_signal(signal.SIGINT)
            assert server.process.stderr is not None
            lines = iter(server.process.stderr.readline, "")
            said = next(line for line in lines if line.startswith("stopping"))
            assert said == "stopping: 2 generations may go on for 30 s; Ctrl-C again ends at once\n"
            server.process.send_signal(second)
            last = response.read().decode().strip().split("\n\n")[-1]
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_unavailable"
            assert server.process.wait(20) == status
            assert list(lines) == []
    finally:
        server.process.kill()


@pytest.mark.long
def test_a_second_signal_ends_a_server_that_is_stuck(folder: Path) -> None:
    server = Running(STUCK, str(folder), "--max-num-seqs", "4")
    try:
        body = b'{"prompt": "a", "max_tokens": 60, "stream": true}'
        headers = {"Content-Type": "application/json"}
        with urlopen(Request(server.url + "/v1/completions", body, headers), timeout=60) as response:
            for number in (signal.SIGTERM, signal.SIGINT):
                server.process.send_signal(number)
                time.sleep(0.5)
            assert server.process.wait(30) == 130  # the step itself would take 60 s
            with contextlib.suppress(IncompleteRead):  # there may be no time for a last word
                assert b"engine_unavailable" in response.read()
    finally:
        server.process.kill()


def connects(url: str) -> bool:
    """False where a connection is refused; one that nobody accepts is an error."""
    place = urlsplit(url)
    try:
        with socket.create_connection((place.hostname, place.port), timeout=10) as client:
            client.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
            return bool(client.recv(1))
    except (ConnectionRefusedError, ConnectionResetError):
        return False


def test_connections_are_refused_while_streams_go_on(folder: Path) -> None:
    """Not kept waiting in the socket's backlog: a proxy tries another server at once."""
    server = Running(SLOW_STEPS, str(folder), "--max-num-seqs", "4")
    try:
        body = b'{"prompt": "a", "max_tokens": 60, "stream": true}'
        headers = {"Content-Type": "application/json"}
        with urlopen(Request(server.url + "/v1/completions", body, headers), timeout=60) as response:
            response.readline()
            server.process.send_signal(signal.SIGTERM)
            assert server.process.stderr is not None
            next(line for line in server.process.stderr if line.startswith("stopping"))
            while connects(server.url):
                time.sleep(0.01)
            assert response.readline()
    finally:
        server.process.kill()


@pytest.mark.long
def test_an_idle_server_just_stops(folder: Path) -> None:
    server = Running(SIMULATED, str(folder))
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(60) == 0
    said = server.process.communicate()[1]
    stages = ["loading weights: 1 MiB", said.splitlines()[1], "preparing 1 programs"]
    stages += ["1 of 1 programs came from the cache", "ready"]
    assert said.splitlines() == [*stages, "stopping"]
    assert stages[1].startswith("float32 on cpu, attention xla; 32 sequences at once, ")


@pytest.mark.long
def test_a_second_signal_to_an_idle_server_is_silent(folder: Path) -> None:
    server = Running(SIMULATED, str(folder))
    server.process.send_signal(signal.SIGINT)
    assert server.process.stderr is not None
    lines = iter(server.process.stderr.readline, "")
    next(line for line in lines if line.startswith("stopping"))
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(60) in (0, 130)  # it may have ended before
    assert list(lines) == []
