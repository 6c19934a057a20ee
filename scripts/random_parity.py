"""Compares random models of every family with transformers: `.venv/bin/python scripts/random_parity.py`.

Each line is one model: its family, the sizes that were drawn, and the largest difference between log-probabilities. A
model is written as transformers writes it, read in float32 by an engine as `jaxinfer serve` builds it, and given two
prompts at once, which it computes in chunks over pages, and continues. What is compared are the most likely tokens at
every position of prompts and outputs. Families that transformers has no class for are computed by numpy_decoder.py.

The same seed draws the same models; `--only` repeats one of them. The exit status is 1 where one differs by more than
the tolerance. Needs torch and transformers (the `parity` extra).
"""

import argparse
import gc
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from golden_files import GoldenModel
from golden_numpy import NumpyModel
from make_goldens import TransformersModel
from numpy_decoder import DECODERS
from random_families import LENGTH, RANDOM, Draw, random_family

from jaxinfer.build import build_engine
from jaxinfer.config import CacheConfig, EngineConfig, ModelConfig, RunnerConfig, SchedulerConfig
from jaxinfer.engine.client.sequence_ids import SequenceIds
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.types import GenerateRequest, TokenLogprobs
from jaxinfer.sampling import MAX_LOGPROBS, SamplingParams

TOLERANCE = 1e-4
_PROMPTS, _NEW = (40, 23), 6


class Text(NamedTuple):
    """A prompt and what the engine continued it with; its log-probabilities from the second token on."""

    ids: list[int]
    found: list[TokenLogprobs]


class Parity(NamedTuple):
    """One model. backend: of attention. difference: the largest, of log-probabilities."""

    family: str
    sizes: str
    backend: str
    difference: float

    @property
    def passed(self) -> bool:
        """False where something is not a number, too."""
        return self.difference <= TOLERANCE

    def __str__(self) -> str:
        end = "ok" if self.passed else "FAIL"
        return f"{self.family} {self.sizes} {self.backend} {self.difference:.1e} {end}"


def compare(seed: int, number: int) -> Parity:
    """Draw, write and compute one model. number: families take turns."""
    names = list(RANDOM)
    draw = Draw(f"{seed} {number}")
    family = random_family(names[number % len(names)], draw)
    kind = NumpyModel if family.name in DECODERS else TransformersModel
    model: GoldenModel = kind(family, draw.number(0, 2**31))
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder))
        core = build_engine(_config(Path(folder), draw)).core
        texts = _texts(core, draw, family.fields["vocab_size"])
    difference = max(_difference(model, text) for text in texts)
    core.close()
    sizes = " ".join(f"{name}={_short(value)}" for name, value in {**family.fields, "dtype": family.dtype}.items())
    return Parity(family.name, sizes, core.info.attention_backend, difference)


def _short(value: object) -> str:
    """A field in a line: numbers of a list are left out."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{_short(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(str(inner).removesuffix("_attention") for inner in value) + "]"
    return str(value)


def _config(folder: Path, draw: Draw) -> EngineConfig:
    """Chunks of a few tokens."""
    return EngineConfig(
        model=str(folder),
        load=ModelConfig(dtype="float32", max_model_len=LENGTH),
        cache=CacheConfig(block_size=draw.one(4, 8, 16), num_blocks=60),
        scheduler=SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=draw.number(5, 16)),
        runner=RunnerConfig(device="cpu", compile="lazy", compile_cache_dir="off"),
    )


def _texts(core: EngineCore, draw: Draw, vocabulary: int) -> list[Text]:
    prompts = {str(length): [draw.number(3, vocabulary - 1) for _ in range(length)] for length in _PROMPTS}
    params = SamplingParams(
        temperature=0.0, max_tokens=_NEW, ignore_eos=True, logprobs=MAX_LOGPROBS, prompt_logprobs=MAX_LOGPROBS
    )
    for name, prompt in prompts.items():
        core.add_request(GenerateRequest(name, prompt, params))
    texts, ids = {name: Text(list(prompt), []) for name, prompt in prompts.items()}, SequenceIds()
    while core.has_work():
        for delta in ids.expand(core.step()):
            if delta.error is not None:
                raise RuntimeError(delta.error)
            text = texts[delta.request_id]
            text.ids.extend(delta.token_ids)
            text.found.extend(one for one in delta.prompt_logprobs or [] if one is not None)
            text.found.extend(delta.logprobs or [])
    return list(texts.values())


def _difference(model: GoldenModel, text: Text) -> float:
    """Return the largest difference of log-probabilities, for each position's token and the most likely ones."""
    logits = model.logits(np.array(text.ids[:-1])).astype(np.float64)
    top = logits.max(axis=-1, keepdims=True)
    wanted = logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))
    if [one.token_id for one in text.found] != text.ids[1:]:
        raise RuntimeError("the log-probabilities are of other tokens")
    pairs = zip(wanted, text.found, strict=True)
    found = [
        abs(row[token] - logprob) for row, one in pairs for token, logprob in [(one.token_id, one.logprob), *one.top]
    ]
    return float(np.max(found))  # not a number where one is none


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60, help="models to draw")
    parser.add_argument("--only", type=int, help="the number of one model, from 0")
    asked = parser.parse_args()
    numbers = range(asked.count) if asked.only is None else [asked.only]
    results = [_printed(asked.seed, number) for number in numbers]
    good, largest = sum(result.passed for result in results), np.max([result.difference for result in results])
    print(f"{good} of {len(results)} within {TOLERANCE:.0e}; largest {largest:.1e}")
    return 0 if good == len(results) else 1


def _printed(seed: int, number: int) -> Parity:
    result = compare(seed, number)
    print(number, result, flush=True)
    jax.clear_caches()  # programs hold mappings of memory, of which a process has 65,530
    gc.collect()
    return result


if __name__ == "__main__":
    sys.exit(main())
