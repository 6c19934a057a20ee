"""The demo model behind `jaxinfer serve`, a client of it, and engines of the demo model in this process."""

from collections.abc import Iterator

import openai
import pytest

from jaxinfer import LLM
from tests.cli.command_line import REAL, Running


@pytest.fixture(scope="session")
def client() -> Iterator[openai.OpenAI]:
    running = Running(REAL, "demo", "--max-num-seqs", "4")
    with openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0) as made:
        yield made
    running.process.kill()
    running.process.communicate()


@pytest.fixture(scope="session")
def engines() -> dict[bool, LLM]:
    """One that runs a step ahead of the device, and one that does not; long prompts are computed in chunks."""
    return {
        overlap: LLM("demo", max_num_seqs=8, overlap=overlap, max_num_batched_tokens=64) for overlap in (True, False)
    }
