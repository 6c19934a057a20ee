"""Trains an EAGLE-3 head for the demo model, or measures how many drafts of one are kept.

    .venv/bin/python scripts/train_eagle3.py --out FOLDER [--steps N]
    .venv/bin/python scripts/train_eagle3.py --measure FOLDER [--count N]

Training takes about a second a step on two CPU cores. It learns from the conversations of the demo model, with the
target's probabilities of each next token: three steps of a training-time test, as in the paper.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from demo_evaluation.evaluation import prompt_ids
from demo_evaluation.questions import held_out
from demo_training.eagle3 import HeadTrainee, frequent_tokens
from demo_training.export import split_source
from demo_training.training import Schedule, data_from, optimizer
from flax import nnx
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from jaxinfer import LLM, SamplingParams
from jaxinfer.model_config.eagle3 import parse_eagle3
from jaxinfer.model_config.model_files import read_config
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.eagle3_checkpoint import HeadTensors
from jaxinfer.models.loaded import load_model

_DEMO = Path(__file__).resolve().parent.parent / "jaxinfer" / "demo"
_TEST_STEPS = 3


def raw_config(target: dict[str, Any], drafts: int) -> dict[str, Any]:
    """config.json of a head for the demo model: below 1 MB in bfloat16."""
    same = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rope_theta",
            "max_position_embeddings", "rms_norm_eps", "hidden_act", "torch_dtype")  # fmt: skip
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **{name: target[name] for name in same},
        "intermediate_size": 192,
        "num_hidden_layers": 1,
        "draft_vocab_size": drafts,
        "tie_word_embeddings": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5], "use_aux_hidden_state": True},
    }


def train(out: Path, steps: int, rate: float, drafts: int, seed: int) -> None:
    """Writes a head to a folder."""
    raw, tokenizer = read_config(_DEMO), Tokenizer.from_file(str(_DEMO / "tokenizer.json"))
    decoder = parse_config(raw)
    target = load_model(_DEMO, decoder, dtype=jnp.dtype(jnp.float32))
    declared = raw_config(raw, drafts)
    columns = frequent_tokens(data_from(tokenizer, seed + 1, 0), drafts)
    trainee = HeadTrainee(target, parse_eagle3(declared, decoder), columns, _TEST_STEPS)
    params, transform = trainee.init(seed), optimizer()
    state, schedule = transform.init(params), Schedule(rate, steps // 10 + 1, 0, steps)
    teach = jax.jit(trainee.taught)

    @jax.jit
    def step(params: Any, state: Any, rate: jax.Array, taught: Any, batch: Any) -> tuple[Any, ...]:
        (loss, agreed), grads = jax.value_and_grad(trainee.loss, has_aux=True)(params, taught, batch)
        updates, state = transform.update(grads, state, params)
        return jax.tree.map(lambda p, u: p + rate * u, params, updates), state, loss, agreed

    begin, data = time.monotonic(), data_from(tokenizer, seed, 0)
    for number, batch in zip(range(steps), data, strict=False):
        taught = teach(target.weights, batch)
        params, state, loss, agreed = step(params, state, jnp.float32(schedule.rate(number)), taught, batch)
        if number % 25 == 0 or number == steps - 1:
            shares = " ".join(f"{share:.1%}" for share in agreed.tolist())
            print(
                f"{time.monotonic() - begin:5.0f} s, step {number}: loss {loss:.3f}, same tokens {shares}", flush=True
            )
    write_head(out, declared, trainee, params, columns)


def write_head(out: Path, raw: dict[str, Any], trainee: HeadTrainee, params: Any, columns: np.ndarray) -> None:
    """config.json and model.safetensors in bfloat16."""
    out.mkdir(parents=True, exist_ok=True)
    sources, tensors = HeadTensors(trainee.config), dict[str, np.ndarray]()
    for path, variable in nnx.to_flat_state(params):
        tensors |= split_source(sources.source(str(path[-1])), np.asarray(variable[...]))
    held = {name: np.ascontiguousarray(x.astype(ml_dtypes.bfloat16)) for name, x in tensors.items()}
    mapping = {
        "d2t": columns - np.arange(len(columns)),
        "t2d": np.isin(np.arange(raw["vocab_size"]), columns),
    }
    save_file({**held, **mapping}, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
    print(f"{out}: {(out / 'model.safetensors').stat().st_size:,} bytes")


def measure(folder: Path, count: int, tokens: int, temperature: float) -> None:
    """Prints which share of drafts at each place is kept, on held-out questions that run one after another. Every step
    drafts, whether it pays or not."""
    asked = {"method": "eagle3", "model": str(folder), "num_speculative_tokens": tokens}
    llm = LLM(str(_DEMO), dtype="float32", max_num_seqs=1, compile="lazy", speculative_config=asked)
    setattr(llm.engine.scheduler.drafts, "drafts", lambda *_: True)  # noqa: B010  # the engine goes by time
    prompts = [{"prompt_token_ids": prompt_ids(llm, question)} for question in held_out(count)]
    llm.generate(prompts, SamplingParams(temperature=temperature, max_tokens=300, seed=0))
    stats = llm.engine.stats()
    shares = ", ".join(f"{kept / stats.drafts.drafts:.1%}" for kept in stats.drafts.accepted_at)
    gained = 1 + stats.drafts.accepted_tokens / stats.drafts.drafts
    print(f"{len(prompts)} questions, {stats.drafts.drafts} drafts: kept {shares}; {gained:.2f} tokens a step")
    llm.close()


def main() -> None:
    """Does what the flags say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="train, and write the head to this folder")
    parser.add_argument("--steps", type=int, default=300, help="of training (default: 300)")
    parser.add_argument("--rate", type=float, default=4e-3, help="the highest rate (default: 0.004)")
    parser.add_argument("--drafts", type=int, default=512, help="tokens of the draft vocabulary (default: 512)")
    parser.add_argument("--seed", type=int, default=0, help="of data and first weights (default: 0)")
    parser.add_argument("--measure", type=Path, help="a head to measure")
    parser.add_argument("--count", type=int, default=200, help="how many questions to ask (default: 200)")
    parser.add_argument("--tokens", type=int, default=4, help="drafts of a row (default: 4)")
    parser.add_argument("--temperature", type=float, default=0.0, help="of the answers (default: 0)")
    options = parser.parse_args()
    if options.out is not None:
        train(options.out, options.steps, options.rate, options.drafts, options.seed)
    if options.measure is not None:
        measure(options.measure, options.count, options.tokens, options.temperature)


if __name__ == "__main__":
    main()
