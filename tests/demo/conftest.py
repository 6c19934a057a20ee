"""The demo model behind `jaxinfer serve`, and a client of it."""

from collections.abc import Iterator

import openai
import pytest

from tests.cli.command_line import REAL, Running


@pytest.fixture(scope="session")
def client() -> Iterator[openai.OpenAI]:
    running = Running(REAL, "demo", "--max-num-seqs", "4")
    with openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0) as made:
        yield made
    running.process.kill()
    running.process.communicate()
