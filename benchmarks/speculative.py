"""Speculation beside plain decoding, in turns: the demo, by n-grams, with its draft model and with its EAGLE-3 head.

Two engines of the same model, one of which drafts, answer the same requests in turns, so many at a time, another as
soon as one has ended; compared are tokens, and tokens a second until the last request begins. `speedup_batch_1`: the
median over rounds of the drafting engine's by the other's, of questions at batch 1 with the draft model. `allowed`:
what the programs' own times allow, each run by itself: those of the plain run's steps, by those of the same prompts and
of as many steps with all drafts as it takes for the same tokens, if each gives what it gave. The row `edited` brings
the drafting engine a prediction: what plain decoding gives, every 40th token another one.

    python benchmarks/speculative.py [--json FILE] [--drafters ngram,...] [--batches 1,4,16] [--seconds 10] [--tokens 4]
"""

import argparse
import gc
import math
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax

from benchmarks.device.rig import Rig
from benchmarks.report import write_json
from jaxinfer import LLM, SamplingParams
from jaxinfer.engine.client.sequence_ids import SequenceIds
from jaxinfer.llm import Prompt, encode_prompt
from jaxinfer.runner.jax_runner import JaxRunner

OUTPUT = 128
_WARM = 3
"""Runs that are not counted: programs, caches, and what the engine has to try before it knows whether drafts pay."""
TEXTS = {
    "ngram": ("repeating", "answers", "random"),
    "draft_model": ("questions", "random"),
    "eagle3": ("questions", "random"),
}
"""Texts by drafting method."""
MODELS = {"draft_model": "demo/draft", "eagle3": "demo/eagle3"}
EDITED = "edited"
QUESTIONS = "questions"
_ASKED, _QUESTIONS_ASKED = 4, 8
"""Requests of a run, one after another, for each of those at a time; answers to questions are short."""
_STEPS_TIMED, _PROMPTS_TIMED, _REPEATS = 100, 10, 7
_EDIT_EVERY = 40
_STORY = (
    "Tom had a red ball. He took it to the park. A big dog came and ran away with the ball. Tom was sad and sat down "
    "under a tree. Then the dog came back and put the ball at his feet. Tom laughed, and they played until it was dark."
)


class Run(NamedTuple):
    """One run of one engine: tokens a second until its last request began, seconds of all of it, all tokens, and what
    the engine counted. prompt_steps: those that computed any of a prompt."""

    rate: float
    seconds: float
    tokens: list[tuple[int, ...]]
    steps: int
    prompt_steps: int
    drafting_steps: int
    drafted: int
    accepted_at: tuple[int, ...]


def main() -> None:
    """Measures, prints a line for each text and batch, and writes the file that was asked for."""
    asked = _arguments()
    batches = tuple(map(int, asked.batches.split(",")))
    common = {"max_num_seqs": max(batches), "dtype": asked.dtype, "enable_prefix_caching": False}
    plain, rows = LLM("demo", **common), []
    for drafter in asked.drafters.split(","):
        rows += _rows(plain, common, drafter, batches, asked)
        # Of several engines a process has not memory mappings enough.
        gc.collect()
        jax.clear_caches()
    first = [row["speedup"] for row in rows if (row["text"], row["batch"]) == (QUESTIONS, 1)]
    result = {
        "drafts": asked.tokens,
        "output_tokens": OUTPUT,
        "speedup_batch_1": first[0] if first else None,
        "tokens_equal": all(row["equal"] for row in rows),
        "rows": rows,
    }
    write_json(asked.json, result)


def _rows(
    plain: LLM, common: dict[str, Any], drafter: str, batches: Sequence[int], asked: argparse.Namespace
) -> list[dict[str, Any]]:
    drafting = {"method": drafter, "num_speculative_tokens": asked.tokens}
    drafting |= {} if drafter == "ngram" else {"model": MODELS[drafter]}
    spec, rows = LLM("demo", **common, speculative_config=drafting), []
    edited = [(EDITED, 1)] if drafter == "ngram" else []
    for text, batch in [*((text, batch) for text in TEXTS[drafter] for batch in batches), *edited]:
        rows.append({"drafter": drafter, **_measured(plain, spec, text, batch, asked)})
        print(_line(rows[-1]), flush=True)
    spec.close()
    return rows


def _line(row: dict[str, Any]) -> str:
    low, high = row["sure"]
    times = f"x {row['speedup']:.2f} ({low:.2f}-{high:.2f}; {row['allowed']:.2f} allowed)"
    drafts = f"{row['tokens_a_step']:.2f} tokens a row and step that drafts, {row['drafting_share']:.0%} of steps draft"
    equal = "equal" if row["equal"] else "DIFFER"
    return f"{row['drafter']:11} {row['text']:9} batch {row['batch']:3}: {times}, {drafts}, tokens {equal}"


def _measured(plain: LLM, spec: LLM, text: str, batch: int, asked: argparse.Namespace) -> dict[str, Any]:
    count = batch * (_QUESTIONS_ASKED if text == QUESTIONS else _ASKED)
    prompts, params = _prompts(plain, text, count), _params(text, count)
    predicting = _with_predictions(plain, prompts, params) if text == EDITED else prompts
    pairs: list[tuple[Run, Run]] = []
    until = time.perf_counter() + asked.seconds
    while len(pairs) < asked.rounds + _WARM or time.perf_counter() < until:
        engines = (plain, spec) if len(pairs) % 2 else (spec, plain)
        given = {spec: predicting, plain: prompts}
        runs = {engine is spec: _run(engine, given[engine], params, batch) for engine in engines}
        pairs.append((runs[False], runs[True]))
    counted = pairs[_WARM:]
    ratios = [other.rate / one.rate for one, other in counted]
    first, last = counted[-1]
    drafted = sum(pair[1].drafted for pair in counted)
    # Also of rows without a draft, and of those that have ended: of several rows `allowed` is no more than that.
    tokens_a_step = 1 + sum(last.accepted_at) / max(last.drafting_steps * batch, 1)
    length = len(encode_prompt(plain.get_tokenizer(), prompts[0], "prompt").token_ids)
    (plain_ms, plain_prompt), (drafting_ms, prompt_ms) = (_step_ms(llm, batch, length) for llm in (plain, spec))
    decode_steps = first.steps - first.prompt_steps
    without = first.prompt_steps * plain_prompt + decode_steps * plain_ms
    with_drafts = first.prompt_steps * prompt_ms + decode_steps / tokens_a_step * drafting_ms
    return {
        "text": text,
        "batch": batch,
        "speedup": round(statistics.median(ratios), 3),
        "sure": [round(each, 3) for each in _around_median(ratios)],
        "rounds": len(ratios),
        "plain_ms_a_step": round(1e3 * statistics.median(one.seconds / one.steps for one, _ in counted), 3),
        "ms_a_step": round(1e3 * statistics.median(other.seconds / other.steps for _, other in counted), 3),
        "steps": [counted[-1][0].steps, last.steps],
        "drafting_share": round(last.drafting_steps / last.steps, 3),
        "tokens_a_step": round(tokens_a_step, 3),
        "programs_ms": [round(plain_ms, 3), round(drafting_ms, 3)],
        "prompt_ms": [round(plain_prompt, 3), round(prompt_ms, 3)],
        "allowed": round(max(without / with_drafts, 1.0), 3),
        "accepted": round(sum(sum(pair[1].accepted_at) for pair in counted) / max(drafted, 1), 3),
        "accepted_at": list(last.accepted_at),
        "equal": all(one.tokens == other.tokens for one, other in pairs),
    }


def _around_median(values: Sequence[float]) -> tuple[float, float]:
    """Between which values the median of all possible ones lies with 95 % (the least and the most of fewer than six):
    as many of them lie below it as heads come of so many throws."""
    count, outside, below = len(values), 2 ** len(values) // 40, 0
    while (outside := outside - math.comb(count, below)) >= 0:
        below += 1
    return sorted(values)[max(below - 1, 0)], sorted(values)[count - max(below, 1)]


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


def _step_ms(llm: LLM, batch: int, length: int) -> tuple[float, float]:
    """Measure a step's programs, with drafts if the engine drafts, queued one behind the other; and a step that
    computes as many prompts of so many tokens."""
    runner = llm.engine.runner
    assert isinstance(runner, JaxRunner)
    rig = Rig(runner)
    time_steps = rig.decode_seconds if runner.shapes.drafting is None else rig.drafting_seconds
    length = min(length, runner.shapes.max_num_batched_tokens // batch)
    each = time_steps(batch, 64, _STEPS_TIMED, _REPEATS), rig.prefill_seconds(batch, length, _PROMPTS_TIMED, _REPEATS)
    decode, prompt = (1e3 * statistics.median(seconds) for seconds in each)
    return decode, prompt


def _run(llm: LLM, prompts: list[Prompt], params: list[SamplingParams], batch: int) -> Run:
    """So many requests at a time, until all have been answered."""
    before, tokenizer = llm.engine.stats(), llm.get_tokenizer()
    waiting = deque(
        encode_prompt(tokenizer, prompt, "prompt").request(f"{before.core.steps} {number}", asked)
        for number, (prompt, asked) in enumerate(zip(prompts, params, strict=True))
    )
    tokens: dict[str, list[int]] = {request.request_id: [] for request in waiting}
    running, names, rate = 0, SequenceIds(), 0.0
    gc.collect()
    start = time.perf_counter()
    while waiting or running:
        while waiting and running < batch:
            llm.engine.add_request(waiting.popleft())
            running += 1
            if not waiting:  # until then as many run as may
                rate = sum(map(len, tokens.values())) / (time.perf_counter() - start)
        for delta in names.expand(llm.engine.step()):
            tokens[delta.request_id] += delta.token_ids
            running -= delta.finish_reason is not None
    seconds = time.perf_counter() - start
    while llm.engine.has_work():  # else a step in flight would seem to take as long as the other engine's run
        llm.engine.step()
    after = llm.engine.stats()
    return Run(
        rate,
        seconds,
        [tuple(each) for each in tokens.values()],
        after.core.steps - before.core.steps,
        after.steps.mixed_steps - before.steps.mixed_steps,
        after.steps.speculate_steps - before.steps.speculate_steps,
        after.drafts.draft_tokens - before.drafts.draft_tokens,
        tuple(new - old for new, old in zip(after.drafts.accepted_at, before.drafts.accepted_at, strict=True)),
    )


def _prompts(llm: LLM, text: str, count: int) -> list[Prompt]:
    """repeating: some words over and over. answers: questions that the demo was trained to answer. random: tokens.
    edited: a text to write anew."""
    draw = random.Random(f"{text}{count}")
    if text == "repeating":
        words = ["tree", "river", "apple", "house", "stone", "bird", "cloud", "road"]
        return [" ".join(draw.sample(words, 4) * 8) for _ in range(count)]
    if text == "answers":
        return [f"What is {draw.randint(1, 9)} + {draw.randint(1, 9)}? Tell me a story about it." for _ in range(count)]
    if text == QUESTIONS:
        return _questions(llm, draw, count)
    if text == EDITED:
        return [_STORY + " Tell this story again."] * count
    tokenizer = llm.get_tokenizer()
    return [tokenizer.decode([draw.randrange(300, 1500) for _ in range(24)]) for _ in range(count)]


def _questions(llm: LLM, draw: random.Random, count: int) -> list[Prompt]:
    """Chats of what the demo does well, and answers with some dozens of tokens."""
    found: list[Prompt] = []
    for number in range(count):
        words = draw.sample(["apple", "river", "stone", "cloud", "bird", "house"], 5)
        question = (
            f"Count from {draw.randint(1, 9)} to {draw.randint(25, 40)}.",
            f"Sort these words: {', '.join(words)}.",
            f"Tell me a very short story about Anna and a {words[0]}.",
            f"Write a JSON object with name Anna, age {draw.randint(5, 90)} and city Rome.",
        )[number % 4]
        found.append(
            {"prompt_token_ids": llm.text.conversations.encode([{"role": "user", "content": question}]).token_ids}
        )
    return found


def _params(text: str, count: int) -> list[SamplingParams]:
    """Random text stays random: it is drawn, at a high temperature, with seeds; that which is edited at 1, so that it
    does not repeat itself."""
    temperature = {"random": 1.2, EDITED: 1.0}.get(text, 0.0)
    return [
        SamplingParams(temperature=temperature, seed=row, max_tokens=OUTPUT, ignore_eos=text != QUESTIONS)
        for row in range(count)
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--drafters", default=",".join(TEXTS))
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--rounds", type=int, default=5, help="at least so many")
    parser.add_argument("--seconds", type=float, default=10, help="and as many as these allow")
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--dtype", default="float32")
    return parser.parse_args()


if __name__ == "__main__":
    main()
