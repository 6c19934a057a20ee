"""Runs vLLM's own tests of its OpenAI server against `jaxinfer serve`: `python -m tests.clients.vllm_suite --help`."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from jaxinfer.version import __version__
from tests.clients.vllm_suite.environment import make_environment
from tests.clients.vllm_suite.listing import read_listing
from tests.clients.vllm_suite.models import make_models
from tests.clients.vllm_suite.source import fetch_tests
from tests.clients.vllm_suite.verdict import verdict

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
# With the start of its server, which may have all programs to prepare.
SECONDS_A_TEST = 900


def main() -> int:
    options = _options()
    listing = read_listing()
    tests = [test for test in listing.run if not options.only or any(part in test for part in options.only)]
    if not tests:
        sys.exit(f"no listed test has {' or '.join(map(repr, options.only))} in its id")
    outcomes = _run(tests, _cache(), options.pytest)
    done = verdict(listing, tests, outcomes)
    print(done.report)
    return done.status


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.clients.vllm_suite", description=__doc__)
    parser.add_argument("only", nargs="*", metavar="TEXT", help="only tests that have one of these in their id")
    parser.add_argument("--pytest", nargs=argparse.REMAINDER, default=[], help="further arguments, which go to pytest")
    return parser.parse_args()


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxinfer" / "clients" / "vllm_suite"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(tests: list[str], cache: Path, further: list[str]) -> dict[str, str]:
    """What came out of each test that ran."""
    source, python = fetch_tests(cache), make_environment(cache / "environment")
    with tempfile.TemporaryDirectory(prefix="jaxinfer-") as name:
        scratch = Path(name)
        make_models(REPOSITORY / "jaxinfer" / "demo", scratch / "models")
        (scratch / "tests.txt").write_text("\n".join(tests))
        subprocess.run(
            [
                str(python), "-m", "pytest", "-p", "vllm_suite_plugin", "-c", os.devnull, f"--rootdir={source}",
                "--import-mode=importlib", "-p", "no:cacheprovider", f"--timeout={SECONDS_A_TEST}", "--tb=short", "-q",
                "-W", "ignore", *further, *sorted({test.partition("::")[0] for test in tests}),
            ],
            cwd=source, env=_environment(source, scratch), check=False,
        )  # fmt: skip
        return _outcomes(scratch / "outcomes.jsonl")


def _environment(source: Path, scratch: Path) -> dict[str, str]:
    """Ours, and what the stand-ins read."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE / "standins"), str(source)]),
        "JAXINFER_SUITE_PYTHON": sys.executable,
        "JAXINFER_SUITE_REPOSITORY": str(REPOSITORY),
        "JAXINFER_SUITE_MODELS": str(scratch / "models"),
        "JAXINFER_SUITE_TESTS": str(scratch / "tests.txt"),
        "JAXINFER_SUITE_OUTCOMES": str(scratch / "outcomes.jsonl"),
        "JAXINFER_SUITE_SERVER_VERSION": __version__,
    }


def _outcomes(file: Path) -> dict[str, str]:
    """Of a test that has more than one line the last counts: its end may fail after it has passed."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {line["test"]: line["outcome"] for line in map(json.loads, lines)}


if __name__ == "__main__":
    sys.exit(main())
