"""Engines as servers: how each is started and stopped."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
INTEGERS = ("int8", "int4")
_START_SECONDS = 900
_PACKAGES = {"jaxinfer": ("jax", "jaxlib"), "transformers": ("transformers", "torch")}


@dataclass(frozen=True)
class Engine:
    """name and dtype say what is measured; int8 and int4: weights in such codes, the rest in bfloat16; of llama.cpp
    q8_0 and q4_0. program: a Python, or its server."""

    name: str
    dtype: str
    program: str

    @property
    def label(self) -> str:
        return f"{self.name} {self.dtype}"

    def versions(self) -> dict[str, str]:
        """Return the versions of the engine's packages in its own environment, or llama.cpp's build."""
        if self.name == "llama.cpp":
            done = subprocess.run([self.program, "--version"], capture_output=True, text=True, check=True, timeout=60)
            told = (done.stdout + done.stderr).splitlines()
            return {"llama.cpp": next((line for line in told if line.startswith("version")), "unknown")}
        code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
        packages = _PACKAGES[self.name]
        done = subprocess.run([self.program, "-c", code, *packages], capture_output=True, text=True, check=True)
        return dict(zip(packages, done.stdout.split(), strict=True))

    def command(self, folder: Path, gguf: Path | None, port: int, slots: int, length: int) -> list[str]:
        """Serves the model on a port of this machine, `slots` requests of `length` tokens at once."""
        if self.name == "transformers":
            module = "benchmarks.peers.transformers_server"
            return [self.program, "-m", module, str(folder), str(port), self.dtype, str(2 * slots * length)]
        if self.name == "llama.cpp":
            sizes = {"-np": slots, "-c": slots * length, "-t": os.cpu_count() or 1, "--port": port}
            flags = [str(text) for pair in sizes.items() for text in pair]
            return [self.program, "-m", str(gguf), "--host", "127.0.0.1", *flags]
        types = (
            ["--quantization", self.dtype, "--dtype", "bfloat16"] if self.dtype in INTEGERS else ["--dtype", self.dtype]
        )
        flags = ["--port", str(port), *types, "--max-num-seqs", str(slots), "--max-waiting", "4096"]
        return [self.program, "-m", "jaxinfer", "serve", str(folder), *flags]


class Server:
    """One engine with one model."""

    def __init__(self, engine: Engine, command: Sequence[str], port: int, log: Path):
        self.engine = engine
        self.command = list(command)
        self.url = f"http://127.0.0.1:{port}"
        paths = [str(REPOSITORY), str(REPOSITORY / "kernels"), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "JAX_PLATFORMS": "cpu"}
        with log.open("w") as output:
            self._process = subprocess.Popen(
                self.command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
        self._log = log

    def wait(self) -> float:
        """Seconds until it answers /health. Raises RuntimeError with the log's end where it never does."""
        start = time.monotonic()
        while time.monotonic() - start < _START_SECONDS:
            if self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                    if answer.status == 200:
                        return time.monotonic() - start
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.2)
        end = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        self.stop()
        raise RuntimeError(f"{self.engine.label} does not serve:\n{end}")

    def stop(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def own_python() -> str:
    return sys.executable
