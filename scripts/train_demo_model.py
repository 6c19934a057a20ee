"""Trains the demo model or its draft: a small Qwen3 on generated conversations.

    .venv/bin/python scripts/train_demo_model.py --run DIR [--resume] [--steps N] [--decay N]
    .venv/bin/python scripts/train_demo_model.py --run OTHER --model draft --tokenizer DIR/tokenizer.json
    .venv/bin/python scripts/train_demo_model.py --run DIR --export FOLDER
    .venv/bin/python scripts/train_demo_model.py --evaluate [FOLDER] [--json FILE]

A run can be stopped at any time and resumed from its last checkpoint; its steps are then those of a run that was
not stopped. The rate stays the same until --decay N lets it fall to nothing in the next N steps, which makes the
model good.
"""

import argparse
from pathlib import Path

from demo_evaluation.agreement import agreement
from demo_evaluation.evaluation import answer, markdown, open_engine, table, write_json
from demo_evaluation.questions import held_out
from demo_training.model import MODELS
from demo_training.run import Run
from demo_training.training import BLOCK

_DEMO = Path(__file__).resolve().parent.parent / "jaxinfer" / "demo"


def main() -> None:
    """Does what the flags say."""
    options = _options()
    if options.evaluate is not None:
        evaluate(options)
        return
    run = Run.open(options.run, options.model, options.seed, options.tokenizer)
    state = run.state(options.resume or options.export is not None)
    if options.export is not None:
        run.export(state, options.export)
        print(f"step {state.step} written to {options.export}")
        return
    schedule = run.schedule(state, options.rate, options.decay)
    end = schedule.last or state.step + options.steps
    run.train(state, schedule, -(-end // BLOCK) * BLOCK)


def evaluate(options: argparse.Namespace) -> None:
    """Prints the table of a model folder, and how far a draft agrees with it."""
    llm = open_engine(options.evaluate)
    results = answer(llm, held_out(options.count, options.seed, options.split))
    llm.close()
    rows = table(results)
    print(markdown(rows))
    if options.json is not None:
        write_json(options.json, rows, results)
    if options.draft is not None:
        draft = open_engine(options.draft)
        share = agreement(draft, results[:: max(1, len(results) // 400)])
        print(f"the draft agrees on {share:.1%} of the answers' tokens")
        draft.close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="folder of the run: tokenizer, checkpoints, log")
    parser.add_argument("--model", choices=sorted(MODELS), default="target")
    parser.add_argument("--tokenizer", type=Path, help="of a new run: a tokenizer.json to share, as the draft does")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    parser.add_argument("--steps", type=int, default=1_000_000, help="how many more steps (default: until stopped)")
    parser.add_argument("--decay", type=int, default=0, help="let the rate fall to nothing in so many steps, and end")
    parser.add_argument("--rate", type=float, default=4e-3, help="the highest rate (default: 0.004)")
    parser.add_argument("--seed", type=int, default=0, help="of tokenizer, data and first weights (default: 0)")
    parser.add_argument("--export", type=Path, help="write the newest checkpoint to this folder")
    parser.add_argument("--evaluate", nargs="?", const=_DEMO, type=Path, help="ask a folder held-out questions")
    parser.add_argument("--count", type=int, default=2000, help="how many questions to ask (default: 2000)")
    parser.add_argument("--split", choices=("test", "validation"), default="test", help="which ones (default: test)")
    parser.add_argument("--draft", type=Path, help="with --evaluate: a draft, to count how often it agrees")
    parser.add_argument("--json", type=Path, help="with --evaluate: a file for the table and the wrong answers")
    options = parser.parse_args()
    if options.evaluate is None and options.run is None:
        parser.error("--run or --evaluate is needed")
    return options


if __name__ == "__main__":
    main()
