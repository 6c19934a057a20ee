"""Every example in the documents is run: Python blocks as programs, curl lines by curl, commands by their help."""

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.command_line import ENVIRONMENT, REAL, Running
from tests.material import REPOSITORY

ADDRESS = "http://127.0.0.1:8000"
GRPC_ADDRESS = "127.0.0.1:50051"
DOCUMENTS = sorted(
    file.relative_to(REPOSITORY)
    for folder in (".", "jaxinfer", "kernels", "configs", "benchmarks")
    for file in (REPOSITORY / folder).glob("**/*.md" if folder != "." else "*.md")
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Example(NamedTuple):
    where: str
    code: str


def blocks(language: str) -> list[Example]:
    found = []
    for document in DOCUMENTS:
        text = (REPOSITORY / document).read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            if block.group(1) == language:
                line = text[: block.start()].count("\n") + 1
                found.append(Example(f"{document}:{line}", block.group(2)))
    return found


PROGRAMS = blocks("python")
SHELL = [*blocks(""), *blocks("bash"), *blocks("sh")]
CURLS = [Example(where, code) for where, code in SHELL if code.startswith("curl ")]


def names(examples: list[Example]) -> list[str]:
    return [example.where for example in examples]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    running = Running(REAL, "demo", "--grpc-port", "0")
    yield running
    running.process.kill()
    running.process.communicate()


@functools.cache
def grpc_address(server: Running) -> str:
    assert server.process.stdout is not None
    found = re.search(r"gRPC at (\S+): ", server.process.stdout.readline())
    assert found is not None
    return found[1]


def test_there_are_examples() -> None:
    assert len(PROGRAMS) >= 4
    assert CURLS


@pytest.mark.few(1)
@pytest.mark.parametrize("example", PROGRAMS, ids=names(PROGRAMS))
def test_a_program(example: Example, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    code = example.code
    if ADDRESS in code:
        code = code.replace(ADDRESS, request.getfixturevalue("server").url)
    if GRPC_ADDRESS in code:
        code = code.replace(GRPC_ADDRESS, grpc_address(request.getfixturevalue("server")))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=ENVIRONMENT, timeout=200,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{example.where}: {done.stderr}"
    assert done.stdout.strip(), f"{example.where} prints nothing"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("example", CURLS, ids=names(CURLS))
def test_a_curl_line(example: Example, server: Running) -> None:
    code = example.code.replace(ADDRESS, server.url).replace("curl ", "curl --silent --show-error --fail ", 1)
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_flags_in_the_documents_exist() -> None:
    """Every `--flag` that stands behind `jaxinfer COMMAND` or `./scripts/serve` is one of that command."""
    wrong = []
    helps: dict[str, str] = {}
    for where, code in SHELL:
        for line in code.replace("\\\n", " ").splitlines():
            found = re.search(
                r"(?:jaxinfer (serve|generate|chat|env)|\./scripts/(serve))\b(.*)", line.partition("#")[0]
            )
            if found is None:
                continue
            command = found.group(1) or found.group(2)
            if command not in helps:
                done = subprocess.run(
                    [*REAL, command, "--help"], capture_output=True, text=True, env=ENVIRONMENT, check=False
                )
                helps[command] = done.stdout
            wrong += [
                f"{where}: {flag}"
                for flag in re.findall(r"(--[a-z][a-z-]*)", found.group(3))
                if flag not in helps[command]
            ]
    assert not wrong
    assert "serve" in helps


def test_what_generate_is_said_to_print_is_what_it_prints() -> None:
    """But for times and rates, which are a machine's own."""
    document = (REPOSITORY / "jaxinfer" / "cli" / "README.md").read_text(encoding="utf-8")
    command = re.search(r"^\.venv/bin/jaxinfer (generate .*)$", document, re.MULTILINE)
    said = re.search(r"^prompt: \d.*$", document, re.MULTILINE)
    assert command is not None
    assert said is not None
    done = subprocess.run(
        [*REAL, *shlex.split(command.group(1))], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    measured = re.compile(r"[\d.]+ (ms|s|tokens/s)\b")
    assert measured.sub("#", done.stderr.splitlines()[-1]) == measured.sub("#", said.group())


def test_the_first_screen_of_the_readme_has_the_first_two_commands() -> None:
    lines = (REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 220
    assert [sum(line.startswith(command) for line in lines[:25]) for command in ("./scripts/serve", "curl")] == [1, 1]


def test_links_lead_somewhere() -> None:
    broken = []
    for document in DOCUMENTS:
        text = (REPOSITORY / document).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if "://" not in target and not os.path.exists((REPOSITORY / document).parent / target):
                broken.append(f"{document}: {target}")
    assert not broken
