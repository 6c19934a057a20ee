"""Measure the acceptance rate of drafts, by the way to choose them: the draft model's likeliest token, or a draw with
the position's own uniform number; 1 - TV is shown, too, the most that any choice can give.

The demo answers questions at some temperatures. At every position of its answers the probabilities of both models are
computed, and from them, exactly: the probability that the model draws the likeliest token of the draft model; that both
draw the same token with the same number (inverse cumulative distributions, ids in order); and the overlap of the two
distributions, which no coupling exceeds.

    python benchmarks/draft_acceptance.py [--json FILE] [--questions 60] [--temperatures 0.3,0.7,1.0]
"""

import argparse
import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.report import write_json
from jaxinfer import LLM, SamplingParams
from jaxinfer.build import DEMO_FOLDER
from jaxinfer.models.declared import read_declared
from jaxinfer.models.loaded import LoadedModel, load_model
from tests.models.dense import dense_attention

LENGTH = 256
"""Tokens of a text that are computed at once, padding among them."""


def main() -> None:
    asked = _arguments()
    llm, draw = LLM("demo", dtype="float32"), random.Random(0)
    chats = [[{"role": "user", "content": _question(draw)}] for _ in range(asked.questions)]
    target, draft = _model(DEMO_FOLDER), _model(DEMO_FOLDER / "draft")
    rows = []
    for temperature in map(float, asked.temperatures.split(",")):
        params = [SamplingParams(temperature=temperature, seed=i, max_tokens=96) for i in range(len(chats))]
        outputs = llm.chat(chats, params, use_tqdm=False)
        texts = [(list(one.prompt_token_ids or ()), list(one.outputs[0].token_ids)) for one in outputs]
        rows.append(_row(target, draft, temperature, texts))
        print(rows[-1], flush=True)
    write_json(asked.json, {"questions": asked.questions, "rows": rows})


def _row(target: LoadedModel, draft: LoadedModel, temperature: float, texts: list[Any]) -> dict[str, Any]:
    found = np.concatenate([_kept(target, draft, temperature, prompt, tokens) for prompt, tokens in texts])
    names = ("likeliest", "same_number", "most")
    means = {name: round(float(value), 4) for name, value in zip(names, found.mean(axis=0), strict=True)}
    return {"temperature": temperature, "positions": len(found), **means}


def _kept(
    target: LoadedModel, draft: LoadedModel, temperature: float, prompt: list[int], tokens: list[int]
) -> np.ndarray:
    """Return at each position of an answer, [n, 3], the probability to keep a draft by each choice, and its bound."""
    text = (prompt + tokens)[:LENGTH]
    places = slice(len(prompt) - 1, len(text) - 1)
    p, q = (_probabilities(model, text, temperature)[places] for model in (target, draft))
    likeliest = np.take_along_axis(p, q.argmax(axis=1)[:, None], axis=1)[:, 0]
    ends, others = p.cumsum(axis=1), q.cumsum(axis=1)
    overlap = np.minimum(ends, others) - np.maximum(ends - p, others - q)
    return np.stack([likeliest, np.maximum(overlap, 0).sum(axis=1), np.minimum(p, q).sum(axis=1)], axis=1)


def _probabilities(model: LoadedModel, text: list[int], temperature: float) -> np.ndarray:
    padded = np.zeros(LENGTH, np.int32)
    padded[: len(text)] = text
    logits = np.asarray(jax.jit(partial(_logits, model))(model.weights, model.head, padded), np.float64)[: len(text)]
    weights = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature)
    return weights / weights.sum(axis=1, keepdims=True)


def _logits(model: LoadedModel, weights: Any, head: Any, tokens: jax.Array) -> jax.Array:
    decoder = model.build(weights)
    hidden, _ = decoder(tokens, jnp.arange(len(tokens)), (), dense_attention(model.config))
    return model.logits(head, decoder.final_norm(hidden))


def _model(folder: Path) -> LoadedModel:
    return load_model(folder, read_declared(folder).config, dtype=jnp.dtype("float32"))


def _question(draw: random.Random) -> str:
    words = draw.sample(["apple", "river", "stone", "cloud", "bird", "house"], 4)
    return draw.choice(
        [
            f"What is {draw.randint(1, 99)} + {draw.randint(1, 99)}?",
            f"Sort these words: {', '.join(words)}.",
            f"Tell me a very short story about Anna and a {words[0]}.",
            f"What is the capital of {draw.choice(['France', 'Italy', 'Spain', 'Japan', 'Norway'])}?",
            f"Write a JSON object with name Anna and age {draw.randint(5, 90)}.",
            f"Count from {draw.randint(1, 9)} to {draw.randint(12, 20)}.",
        ]
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--temperatures", default="0.3,0.7,1.0")
    return parser.parse_args()


if __name__ == "__main__":
    main()
