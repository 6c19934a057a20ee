"""Trains the demo model: a small Qwen3 on generated conversations, in about ten minutes on two CPU cores.

    .venv/bin/python scripts/train_demo_model.py [--minutes 10] [--out DIR] [--seed 0]

The seed fixes the tokenizer, the data and the first weights; how many steps fit into the time depends on the machine.
"""

import argparse
from pathlib import Path

from demo_training.export import write_folder
from demo_training.model import Trainee, raw_config
from demo_training.template import IM_END, message, opening
from demo_training.tokens import batches, special, train_tokenizer
from demo_training.training import Progress, train

_VOCABULARY = 2048
_ROWS, _LENGTH = 8, 256

_TRIED = (
    "Hello! Who are you?",
    "What is 7 + 8?",
    "Count to 10.",
    "What is the capital of Japan?",
    "Tell me a story about a cat.",
    "Say this is a test",
    "How does football work?",
)


def main() -> None:
    """Trains, writes the folder, and shows what the model answers."""
    options = _options()
    tokenizer = train_tokenizer(options.seed, _VOCABULARY)
    stop = special(tokenizer, IM_END)
    raw = raw_config(tokenizer.get_vocab_size(), stop)
    trainee = Trainee(raw)
    data = batches(tokenizer, options.seed + 1, _ROWS, _LENGTH)

    def report(progress: Progress) -> None:
        seconds, steps, loss = progress
        print(f"{seconds:5.0f} s of {options.minutes * 60:.0f}, step {steps:5}, loss {loss:.4f}", flush=True)

    params = train(trainee, trainee.init(options.seed), data, options.minutes * 60, report)
    write_folder(options.out, raw, params, tokenizer)
    size = sum(file.stat().st_size for file in options.out.iterdir())
    print(f"{options.out}: {size / 1e6:.2f} MB")
    for text in _TRIED:
        prompt = tokenizer.encode(message("user", text) + opening("assistant")).ids
        print(f"  {text}\n    {tokenizer.decode(trainee.greedy(params, prompt, stop))}", flush=True)


def _options() -> argparse.Namespace:
    default = Path(__file__).resolve().parent.parent / "jaxinfer" / "demo"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to train (default: 10)")
    parser.add_argument("--out", type=Path, default=default, help="folder to write (default: jaxinfer/demo)")
    parser.add_argument("--seed", type=int, default=0, help="of data and first weights (default: 0)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
