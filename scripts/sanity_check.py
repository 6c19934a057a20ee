"""Loads a tiny model of every family, generates, and prints a table: `.venv/bin/python scripts/sanity_check.py`.

The models are those of tests/goldens, each with what an independent implementation generated from it. An engine is
built as `jaxinfer serve` builds it; the same prompt comes twice, so that its blocks are reused. The exit status is 1
where tokens differ. On a machine with an accelerator this shows that every family runs on it; `--attention-backend
mosaic_tpu` runs the kernels for TPUs on a CPU, in an interpreter.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxinfer.build import build_engine
from jaxinfer.config import AttentionBackend, CacheConfig, EngineConfig, ModelConfig, RunnerConfig, SchedulerConfig
from jaxinfer.engine.client.sequence_ids import SequenceIds
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.sampling import SamplingParams

GOLDENS = Path(__file__).resolve().parent.parent / "tests" / "goldens"
_LENGTH, _BLOCK, _BLOCKS = 64, 4, 60


class Row(NamedTuple):
    """One family. right: of `wanted` tokens. cached: tokens of the prompt that its second request found."""

    family: str
    architecture: str
    backends: str
    right: int
    wanted: int
    cached: int
    seconds: float

    @property
    def passed(self) -> bool:
        """True where all tokens are right and the prefix was reused."""
        return self.right == self.wanted and self.cached > 0


def check(folder: Path, backend: AttentionBackend, tokens: int) -> Row:
    """Builds an engine over one model and generates `tokens` twice from its prompt."""
    started = time.perf_counter()
    golden = np.load(folder / "golden.npz")
    wanted = golden["greedy"][: min(tokens, _LENGTH - len(golden["prompt"]) - 1)].tolist()
    core = build_engine(_config(folder, backend)).core
    prompt = golden["prompt"].tolist()
    found, _ = _generate(core, prompt, len(wanted))
    again, cached = _generate(core, prompt, len(wanted))
    right = sum(one == two == want for one, two, want in zip(found, again, wanted, strict=False))
    (architecture,) = json.loads((folder / "config.json").read_text())["architectures"]
    seconds = time.perf_counter() - started
    return Row(folder.name, architecture, core.info.attention_backend, right, len(wanted), cached, seconds)


def _config(folder: Path, backend: AttentionBackend) -> EngineConfig:
    return EngineConfig(
        model=str(folder),
        load=ModelConfig(dtype="float32", max_model_len=_LENGTH),
        cache=CacheConfig(block_size=_BLOCK, num_blocks=_BLOCKS),
        scheduler=SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=8),
        runner=RunnerConfig(attention_backend=backend, lazy_compile=True, compile_cache_dir="off"),
    )


def _generate(core: EngineCore, prompt: list[int], count: int) -> tuple[list[int], int]:
    """Greedy tokens, and how many of the prompt were cached."""
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    core.add_request(GenerateRequest("sanity", prompt, params))
    ids, tokens, cached = SequenceIds(), list[int](), 0
    while core.has_work():
        for delta in ids.expand(core.step()):
            tokens += delta.token_ids
            cached = delta.cached_tokens
    return tokens, cached


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted(path.name for path in GOLDENS.iterdir())
    parser.add_argument("families", nargs="*", choices=[[], *names], metavar="family", help="by default all")
    parser.add_argument("--attention-backend", default="auto", choices=["auto", "xla", "mosaic_tpu", "mosaic_gpu"])
    parser.add_argument("--tokens", type=int, default=24, help="to generate")
    asked = parser.parse_args()
    print(f"{'family':20}{'architecture':34}{'attention':12}{'tokens':>10}{'cached':>8}{'seconds':>9}")
    failed = 0
    for name in asked.families or names:
        row = check(GOLDENS / name, asked.attention_backend, asked.tokens)
        failed += not row.passed
        said = "" if row.passed else "  WRONG"
        figures = f"{f'{row.right} of {row.wanted}':>10}{row.cached:8}{row.seconds:9.1f}"
        print(f"{row.family:20}{row.architecture:34}{row.backends:12}{figures}{said}", flush=True)
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
