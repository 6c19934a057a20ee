"""guidellm: short benchmarks whose counts must agree with the server's own."""
# pyright: reportMissingImports=false

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from scenarios import Server, main, scenario

# The folder of the demo model, whose tokenizer counts the tokens of a synthetic prompt.
TOKENIZER = Path(__file__).resolve().parent.parent.parent / "jaxinfer" / "demo"
REQUESTS, OUTPUT_TOKENS = 8, 8


def benchmark(server: Server, profile: str, backend: str) -> Any:
    """The metrics of one benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        done = subprocess.run(
            [
                sys.executable, "-m", "guidellm", "run", "--disable-console", "--profile", profile,
                "--backend", f"kind=openai_http,target={server.url},model={server.model},{backend}",
                "--constraint", f"kind=max_requests,count={REQUESTS}",
                "--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}",
                "--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={OUTPUT_TOKENS}",
                "--output", f"kind=json,path={report}",
            ],
            capture_output=True, text=True, check=False, env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        (measured,) = json.loads(report.read_text())["benchmarks"]
    return measured["metrics"]


def compare(server: Server, profile: str, backend: str) -> None:
    generated, prompted = server.metric("vllm:generation_tokens_total"), server.metric("vllm:prompt_tokens_total")
    metrics = benchmark(server, profile, backend)
    assert metrics["request_totals"] == {
        "successful": REQUESTS, "errored": 0, "incomplete": 0, "total": REQUESTS,
    }  # fmt: skip
    assert metrics["output_token_count"]["successful"]["total_sum"] == REQUESTS * OUTPUT_TOKENS
    assert server.metric("vllm:generation_tokens_total") - generated == REQUESTS * OUTPUT_TOKENS
    assert (
        server.metric("vllm:prompt_tokens_total") - prompted
        == (metrics["prompt_token_count"]["successful"]["total_sum"])
    )


@scenario
def chats_in_a_stream(server: Server) -> None:
    compare(server, "kind=concurrent,streams=4", "request_format=/v1/chat/completions")


@scenario
def completions_one_by_one(server: Server) -> None:
    compare(server, "kind=synchronous", "request_format=/v1/completions,stream=false")


if __name__ == "__main__":
    main()
