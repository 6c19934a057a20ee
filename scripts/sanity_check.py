"""Loads a tiny model of every family, generates, and prints a table: `.venv/bin/python scripts/sanity_check.py`.

The models are those of tests/goldens, each with what an independent implementation generated from it. An engine is
built as `jaxinfer serve` builds it; the same prompt comes twice, so that its blocks are reused. The exit status is 1
where tokens differ. Then a few families come once for each way of `--quantization`: there the count says how many
tokens are still those of the plain model, and what fails is that the second text differs from the first. Last come
checkpoints that are quantised already, in every format, whose tokens NumPy has from the values that were written. On a
machine
with an accelerator this shows that every family and scheme runs on it; `--attention-backend mosaic_tpu` runs the
kernels for TPUs on a CPU, in an interpreter.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np

from jaxinfer.build import build_engine
from jaxinfer.config import (
    AttentionBackend,
    CacheConfig,
    EngineConfig,
    ModelConfig,
    Quantization,
    RunnerConfig,
    SchedulerConfig,
)
from jaxinfer.engine.client.sequence_ids import SequenceIds
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.quantization.made import MADE
from jaxinfer.sampling import SamplingParams
from tests.quantization.circumstances import ACTIVATIONS, FORMS, checkpoint_of
from tests.quantization.reference import Reference

GOLDENS = Path(__file__).resolve().parent.parent / "tests" / "goldens"
_LENGTH, _BLOCK, _BLOCKS = 64, 4, 60


QUANTISED = ("llama3", "gemma3", "qwen2_moe", "gpt_oss")
"""Dense, with windows, with experts of both kinds."""


FORMATS = tuple(name for name in FORMS if name not in ACTIVATIONS)
"""Formats of checkpoints, except those with rounded activations: of two codes equally near, either may be right."""
_PROMPT = 12


class Row(NamedTuple):
    """One family, held in one way. right: of `wanted` tokens. repeated: the second text was the first one. cached:
    tokens of the prompt that its second request found."""

    family: str
    quantization: str
    architecture: str
    backends: str
    right: int
    wanted: int
    repeated: bool
    cached: int
    seconds: float

    @property
    def passed(self) -> bool:
        """True where all tokens are right, or of weights that were made those of both texts, and the prefix was
        reused."""
        right = self.right == self.wanted or self.quantization in MADE
        return right and self.repeated and self.cached > 0


def check(folder: Path, backend: AttentionBackend, tokens: int, quantization: Quantization = "none") -> Row:
    """Builds an engine over one model and generates `tokens` twice from its prompt."""
    started = time.perf_counter()
    golden = np.load(folder / "golden.npz")
    wanted = golden["greedy"][: min(tokens, _LENGTH - len(golden["prompt"]) - 1)].tolist()
    core = build_engine(_config(folder, backend, quantization)).core
    prompt = golden["prompt"].tolist()
    found, _ = _generate(core, prompt, len(wanted))
    again, cached = _generate(core, prompt, len(wanted))
    right = sum(one == want for one, want in zip(found, wanted, strict=False))
    (architecture,) = json.loads((folder / "config.json").read_text())["architectures"]
    seconds, backends = time.perf_counter() - started, core.info.attention_backend
    counts = (right, len(wanted), found == again and len(found) == len(wanted), cached)
    return Row(folder.name, quantization, architecture, backends, *counts, seconds)


def check_format(name: str, backend: AttentionBackend, tokens: int) -> Row:
    """Check a small Llama in a format of FORMATS, which is written first, as `check` does."""
    checkpoint = checkpoint_of(name)
    decoder, size = Reference(checkpoint.config, checkpoint.plain), checkpoint.config["vocab_size"]
    prompt = text = np.random.default_rng(0).integers(0, size, _PROMPT)
    for _ in range(min(tokens, _LENGTH - _PROMPT - 1)):
        text = np.append(text, decoder.logits(text)[-1].argmax())
    with tempfile.TemporaryDirectory() as place:
        folder = checkpoint.write(Path(place) / "checkpoint")
        np.savez(folder / "golden.npz", prompt=prompt, greedy=text[_PROMPT:])
        return check(folder, backend, tokens)._replace(family="llama", quantization=name)


def _config(folder: Path, backend: AttentionBackend, quantization: Quantization) -> EngineConfig:
    return EngineConfig(
        model=str(folder),
        load=ModelConfig(dtype="float32", max_model_len=_LENGTH, quantization=quantization),
        cache=CacheConfig(block_size=_BLOCK, num_blocks=_BLOCKS),
        scheduler=SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=8),
        runner=RunnerConfig(attention_backend=backend, compile="lazy", compile_cache_dir="off"),
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


def _line(row: Row) -> str:
    figures = f"{f'{row.right} of {row.wanted}':>10}{row.cached:8}{row.seconds:9.1f}"
    said = "" if row.passed else "  WRONG"
    return f"{row.family:20}{row.architecture:34}{row.quantization:12}{row.backends:12}{figures}{said}"


def _failed(row: Row) -> bool:
    """Prints its line."""
    print(_line(row), flush=True)
    return not row.passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted(path.name for path in GOLDENS.iterdir())
    parser.add_argument("families", nargs="*", choices=[[], *names], metavar="family", help="by default all")
    parser.add_argument("--attention-backend", default="auto", choices=get_args(AttentionBackend))
    parser.add_argument("--tokens", type=int, default=24, help="to generate")
    asked = parser.parse_args()
    columns = f"{'weights':12}{'attention':12}{'tokens':>10}{'cached':>8}{'seconds':>9}"
    print(f"{'family':20}{'architecture':34}{columns}")
    failed, chosen = 0, asked.families or names
    quantised = [name for name in chosen if name in QUANTISED]
    for quantization in get_args(Quantization):
        for name in chosen if quantization == "none" else quantised:
            failed += _failed(check(GOLDENS / name, asked.attention_backend, asked.tokens, quantization))
    for name in FORMATS if not asked.families else ():
        failed += _failed(check_format(name, asked.attention_backend, asked.tokens))
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
