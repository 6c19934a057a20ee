"""Speculation beside plain decoding, in turns: the demo; texts that repeat themselves, answers, random text, edits.

Two engines of the same model, one of which drafts, answer the same requests in turns; times are of whole runs, tokens
are compared. `speedup_batch_1`: the median over rounds of plain time by drafting time, of the first text at batch 1.
The row `edited` brings the drafting engine a prediction: what plain decoding gives, every 40th token another one.

    python benchmarks/speculative.py [--json FILE] [--batches 1,4,16] [--rounds 5] [--tokens 4] [--model demo]
"""

import argparse
import gc
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.report import write_json
from jaxinfer import LLM, SamplingParams
from jaxinfer.llm import Prompt

OUTPUT = 128
_WARM = 3
"""Runs that are not counted: programs, caches, and what the engine has to try before it knows whether drafts pay."""
TEXTS = ("repeating", "answers", "random")
EDITED = "edited"
_EDIT_EVERY = 40
_STORY = (
    "Tom had a red ball. He took it to the park. A big dog came and ran away with the ball. Tom was sad and sat down "
    "under a tree. Then the dog came back and put the ball at his feet. Tom laughed, and they played until it was dark."
)


class Run(NamedTuple):
    """One run of one engine: seconds, all tokens, and what the engine counted."""

    seconds: float
    tokens: list[tuple[int, ...]]
    steps: int
    drafting_steps: int
    drafted: int
    accepted_at: tuple[int, ...]


def main() -> None:
    """Measures, prints a line for each text and batch, and writes the file that was asked for."""
    asked = _arguments()
    drafting = {"method": "ngram", "num_speculative_tokens": asked.tokens}
    batches = tuple(map(int, asked.batches.split(",")))
    common = {"max_num_seqs": max(batches), "dtype": asked.dtype, "enable_prefix_caching": False}
    plain, spec = LLM(asked.model, **common), LLM(asked.model, **common, speculative_config=drafting)
    cases = [(text, batch) for text in TEXTS for batch in batches] + [(EDITED, 1)]
    rows = [_measured(plain, spec, text, batch, asked.rounds) for text, batch in cases]
    for row in rows:
        print(_line(row), flush=True)
    result = {
        "model": asked.model,
        "speculative_config": drafting,
        "output_tokens": OUTPUT,
        "speedup_batch_1": rows[0]["speedup"] if batches[0] == 1 else None,
        "tokens_equal": all(row["equal"] for row in rows),
        "rows": rows,
    }
    write_json(asked.json, result)


def _line(row: dict[str, Any]) -> str:
    times = f"x {row['speedup']:.2f} ({row['lowest']:.2f}-{row['highest']:.2f})"
    drafts = f"{row['tokens_a_step']:.2f} tokens a row and step that drafts, {row['drafting_share']:.0%} of steps draft"
    return f"{row['text']:10} batch {row['batch']:3}: {times}, {drafts}, tokens {'equal' if row['equal'] else 'DIFFER'}"


def _measured(plain: LLM, spec: LLM, text: str, batch: int, rounds: int) -> dict[str, Any]:
    prompts, params = _prompts(plain, text, batch), _params(text, batch)
    predicting = _with_predictions(plain, prompts, params) if text == EDITED else prompts
    pairs = []
    for number in range(rounds + _WARM):
        engines = (plain, spec) if number % 2 else (spec, plain)
        runs = {engine is spec: _run(engine, predicting if engine is spec else prompts, params) for engine in engines}
        pairs.append((runs[False], runs[True]))
    counted = pairs[_WARM:]
    ratios = [one.seconds / other.seconds for one, other in counted]
    last = counted[-1][1]
    drafted = sum(pair[1].drafted for pair in counted)
    return {
        "text": text,
        "batch": batch,
        "speedup": round(statistics.median(ratios), 3),
        "lowest": round(min(ratios), 3),
        "highest": round(max(ratios), 3),
        "plain_ms_a_step": round(1e3 * statistics.median(one.seconds / one.steps for one, _ in counted), 3),
        "ms_a_step": round(1e3 * statistics.median(other.seconds / other.steps for _, other in counted), 3),
        "steps": [counted[-1][0].steps, last.steps],
        "drafting_share": round(last.drafting_steps / last.steps, 3),
        "tokens_a_step": round(1 + sum(last.accepted_at) / max(last.drafting_steps * batch, 1), 3),
        "accepted": round(sum(sum(pair[1].accepted_at) for pair in counted) / max(drafted, 1), 3),
        "accepted_at": list(last.accepted_at),
        "equal": all(one.tokens == other.tokens for one, other in pairs),
    }


def _with_predictions(plain: LLM, prompts: list[Prompt], params: list[SamplingParams]) -> list[Prompt]:
    """Each prompt with what it gives, in which every 40th token is another one."""
    results = plain.generate(prompts, params, use_tqdm=False)
    predicted: list[Prompt] = []
    for prompt, result in zip(prompts, results, strict=True):
        ids = list(result.outputs[0].token_ids)
        for place in range(_EDIT_EVERY - 1, len(ids), _EDIT_EVERY):
            ids[place] = (ids[place] + 1) % plain.info.vocab_size
        predicted.append({"prompt": prompt, "prediction": ids})
    return predicted


def _run(llm: LLM, prompts: list[Prompt], params: list[SamplingParams]) -> Run:
    before = llm.engine.stats()
    gc.collect()
    start = time.perf_counter()
    results = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    after = llm.engine.stats()
    return Run(
        seconds,
        [tuple(result.outputs[0].token_ids) for result in results],
        after.steps - before.steps,
        after.speculate_steps - before.speculate_steps,
        after.draft_tokens - before.draft_tokens,
        tuple(new - old for new, old in zip(after.accepted_at, before.accepted_at, strict=True)),
    )


def _prompts(llm: LLM, text: str, batch: int) -> list[Prompt]:
    """repeating: some words over and over. answers: questions that the demo was trained to answer. random: tokens.
    edited: a text to write anew."""
    draw = random.Random(f"{text}{batch}")
    if text == "repeating":
        words = ["tree", "river", "apple", "house", "stone", "bird", "cloud", "road"]
        return [" ".join(draw.sample(words, 4) * 8) for _ in range(batch)]
    if text == "answers":
        return [f"What is {draw.randint(1, 9)} + {draw.randint(1, 9)}? Tell me a story about it." for _ in range(batch)]
    if text == EDITED:
        return [_STORY + " Tell this story again."] * batch
    tokenizer = llm.get_tokenizer()
    return [tokenizer.decode([draw.randrange(300, 1500) for _ in range(24)]) for _ in range(batch)]


def _params(text: str, batch: int) -> list[SamplingParams]:
    """Random text stays random: it is drawn, at a high temperature, with seeds; that which is edited at 1, so that it
    does not repeat itself."""
    temperature = {"random": 1.2, EDITED: 1.0}.get(text, 0.0)
    return [
        SamplingParams(temperature=temperature, seed=row, max_tokens=OUTPUT, ignore_eos=True) for row in range(batch)
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dtype", default="float32")
    return parser.parse_args()


if __name__ == "__main__":
    main()
