"""`tests.utils` of vLLM's tests: the server that they start is `jaxinfer serve`."""

import os
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import openai
import served_model
from server_flags import translated
from vllm_modules import get_open_port

ROCM_EXTRA_ARGS: list[str] = []
PYTHON = os.environ["JAXINFER_SUITE_PYTHON"]
REPOSITORY = os.environ["JAXINFER_SUITE_REPOSITORY"]


class RemoteOpenAIServer:
    """A server in a process of its own, under the name of the model that a test asks for."""

    DUMMY_API_KEY = "token-abc123"

    def __init__(
        self, model: str, vllm_serve_args: list[str], *, env_dict: dict[str, str] | None = None, seed: int = 0,
        auto_port: bool = True, max_wait_seconds: float | None = None,
    ):  # fmt: skip
        flags = translated(vllm_serve_args)
        if "--port" not in flags:
            flags += ["--port", str(get_open_port())]
        self.host, self.port = "127.0.0.1", int(flags[flags.index("--port") + 1])
        self.uds = None
        self.show_hidden_metrics = False
        self._folder = tempfile.TemporaryDirectory(prefix="jaxinfer-")
        self.log = Path(self._folder.name) / "server.log"
        self.process = self._started(model, [*flags, "--seed", str(seed)], env_dict or dict(os.environ))
        try:
            self._wait(max_wait_seconds or 480)
        except BaseException:  # pytest's time limit, too, must leave no server behind
            self.close()
            raise

    def _started(self, model: str, flags: list[str], environment: dict[str, str]) -> subprocess.Popen:
        """Under the name that the test asks for, unless its flags name another."""
        command = [PYTHON, "-m", "jaxinfer", "serve", str(served_model.folder()), *served_model.size_flags()]
        names = [] if "--served-model-name" in flags else ["--served-model-name", model]
        with self.log.open("w") as log:
            return subprocess.Popen(
                [*command, *names, *flags], stdout=log, stderr=subprocess.STDOUT, cwd=REPOSITORY,
                env=_environment(environment),
            )  # fmt: skip

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the server did not start:\n{self.log.read_text()}")
            time.sleep(0.3)

    def _ready(self) -> bool:
        """Refused connections and 503 are the two ways of not yet."""
        try:
            with urllib.request.urlopen(self.url_for("readyz")):
                return True
        except OSError:
            return False

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._folder.cleanup()

    def __enter__(self) -> "RemoteOpenAIServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url_root(self) -> str:
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts: str) -> str:
        return "/".join([self.url_root, *(part.strip("/") for part in parts if part)])

    def get_client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(**self._client_options(options))

    def get_async_client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**self._client_options(options))

    def _client_options(self, options: dict[str, Any]) -> dict[str, Any]:
        fixed = {"base_url": self.url_for("v1"), "api_key": self.DUMMY_API_KEY, "max_retries": 0}
        return {"timeout": 600, **options, **fixed}


def _environment(given: dict[str, str]) -> dict[str, str]:
    """What the tests give, without the stand-ins, and with our name for the API key."""
    environment = {name: value for name, value in given.items() if name != "PYTHONPATH"}
    environment["PYTHONPATH"] = os.pathsep.join([REPOSITORY, os.path.join(REPOSITORY, "kernels")])
    if "VLLM_API_KEY" in given:
        environment["JAXINFER_API_KEY"] = given["VLLM_API_KEY"]
    return environment
