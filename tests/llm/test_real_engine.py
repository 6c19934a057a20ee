"""The whole way with the real engine: a trained model's greedy text, by LLM and over HTTP."""

import json
import signal
from typing import Any

import openai
import pytest

from jaxinfer import LLM, SamplingParams
from tests.cli.command_line import REAL, Running
from tests.material import material

pytestmark = pytest.mark.long

SMALL = {"max_num_seqs": 4, "max_model_len": 256, "max_num_batched_tokens": 64, "dtype": "float32"}


def reference() -> dict[str, Any]:
    return json.loads(material("models", "stories260K", "greedy_reference.json").read_text())


def test_llm_gives_the_reference_ids_and_text() -> None:
    llm = LLM(str(material("models", "stories260K")), **SMALL)
    cases = reference()["cases"]
    params = SamplingParams(temperature=0.0, max_tokens=64)
    outputs = llm.generate([case["prompt"] for case in cases], params)
    for output, case in zip(outputs, cases, strict=True):
        assert output.prompt_token_ids == case["prompt_token_ids"]
        assert output.outputs[0].token_ids == case["new_token_ids"]
        assert case["prompt"] + output.outputs[0].text == case["full_text"]
    llm.close()


def test_serve_gives_the_reference_text_to_the_openai_package() -> None:
    flags = [part for name, value in SMALL.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    server = Running(REAL, str(material("models", "stories260K")), "--served-model-name", "stories", *flags)
    try:
        with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            for case in reference()["cases"][1:3]:
                stream = client.completions.create(
                    model="stories", prompt=case["prompt"], max_tokens=64, temperature=0, stream=True
                )
                text = "".join(chunk.choices[0].text for chunk in stream)
                assert case["prompt"] + text == case["full_text"]
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    finally:
        server.process.kill()
        server.process.communicate()
