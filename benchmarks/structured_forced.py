"""Count the steps that fast-forward saves: right answers to functions' schemas, as any model would write them.

Each answer is the first that its question accepts, in the spelling of `json.dumps`. A step draws a token, the first of
forced ones, too; the next one computes all of these in one row, and draws the token after them. Nothing is timed: the
engine itself must measure whether such a step pays. `flexible`: white space as the grammar allows by default; `fixed`:
as in calls of tools, and with `disable_any_whitespace`. Tokenizers that put a space before each text do not work here.

    python benchmarks/structured_forced.py TOKENIZER.json... [--json FILE] [--schemas 50]

$JAXINFER_TEST_DATA names the folder of the shared material, by default ../shared/data.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tokenizers import Tokenizer

from benchmarks.report import write_json
from benchmarks.structured_parts.object_schemas import ObjectSchema, object_schemas
from jaxinfer.constraint import Constraint
from jaxinfer.engine.constraint import MatcherError
from jaxinfer.grammar.grammars import Grammars
from jaxinfer.sampling import SamplingParams

END = 0
WHITE_SPACE = {"flexible": None, "fixed": ""}


class Written(NamedTuple):
    """Counts for one answer: its tokens, the forced ones among them, and its steps."""

    tokens: int
    forced: int
    steps: int


def main() -> None:
    """Counts, prints a line for each tokenizer and kind of white space, and writes the file that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizers", type=Path, nargs="+", metavar="TOKENIZER.json")
    parser.add_argument("--schemas", type=int, default=50)
    parser.add_argument("--json", metavar="FILE")
    asked = parser.parse_args()
    data = Path(os.environ.get("JAXINFER_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
    rows = [_counted(file, data, asked.schemas, name) for file in asked.tokenizers for name in WHITE_SPACE]
    write_json(asked.json, {"schemas": asked.schemas, "rows": rows})


def _counted(file: Path, data: Path, schemas: int, white_space: str) -> dict[str, Any]:
    tokenizer = Tokenizer.from_file(str(file))
    grammars = Grammars(file, tokenizer.get_vocab_size(), (END,))

    def accepts(constraint: Constraint) -> None:
        grammars.compile(SamplingParams(structured_outputs=constraint), frozenset({END}))

    functions = object_schemas(data, schemas, accepts)["functions"]
    found = [_written(grammars, tokenizer, each, WHITE_SPACE[white_space]) for each in functions]
    right = [each for each in found if each is not None]
    if not right:
        sys.exit(f"{file}: its tokens make none of the answers")
    tokens, forced, steps = (sum(values) for values in zip(*right, strict=True))
    name = file.parent.name if file.name == "tokenizer.json" else file.stem
    row = {
        "tokenizer": name, "vocabulary": tokenizer.get_vocab_size(), "white_space": white_space,
        "answers": len(right), "refused": len(found) - len(right),
        "tokens": tokens, "forced": forced, "steps": steps, "saved": round(1 - steps / tokens, 4),
    }  # fmt: skip
    print(f"{name}, {white_space}: {len(right)} answers of {tokens} tokens in {steps} steps: {row['saved']:.1%} saved")
    return row


def _written(grammars: Grammars, tokenizer: Tokenizer, each: ObjectSchema, whitespace: str | None) -> Written | None:
    """None where the grammar refuses the answer, which is right by its question and not by its schema."""
    constraint = Constraint.schema(each.schema, each.name)
    if whitespace is not None:
        constraint = constraint.with_whitespace(whitespace)
    matcher = grammars.compile(SamplingParams(structured_outputs=constraint), frozenset({END}))
    text, tokens, forced, steps = json.dumps(each.instance, ensure_ascii=False), 0, 0, 0
    while text:
        ahead = list(matcher.forced())
        taken = ahead or tokenizer.encode(text, add_special_tokens=False).ids[:1]
        written = tokenizer.decode(taken, skip_special_tokens=False)
        if not text.startswith(written):
            return None
        try:
            matcher.accept(taken)
        except MatcherError:
            return None
        text = text[len(written) :]
        tokens, forced, steps = tokens + len(taken), forced + len(ahead), steps + 1
    return Written(tokens, forced, steps)


if __name__ == "__main__":
    main()
