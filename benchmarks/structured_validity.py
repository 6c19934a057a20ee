"""Check that all that the demo model writes under schemas is valid, and count how often it comes to an end.

Lists of schemas whose root is an object (`structured_parts/object_schemas.py` has the rule of choice), many generations
of each at temperature 1 in the demo's chat template, all of a list's schemas at once. Texts that end because the
grammar or the model ends them are read by json and judged by jsonschema, with the formats that it can check; texts that
end by `max_tokens` are counted. Nothing is timed.

    python benchmarks/structured_validity.py [--json FILE] [--schemas 50] [--generations 100]

$JAXINFER_TEST_DATA names the folder of the shared material, by default ../shared/data. The form without arguments is
small; the one above is the whole.
"""

import argparse
import json
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jsonschema
from jsonschema.validators import validator_for

from benchmarks.report import write_json
from benchmarks.structured_parts.object_schemas import ObjectSchema, object_schemas
from jaxinfer.constraint import Constraint
from jaxinfer.llm import LLM
from jaxinfer.sampling import SamplingParams
from jaxinfer.text.request_output import CompletionOutput

ROWS, MAX_TOKENS, MOST_BY_LENGTH = 128, 512, 0.10
COUNTS = ("steps", "generation_tokens", "forced_tokens")
"""Fields of CoreStats that are counted, for all generations of a list."""


class Found(NamedTuple):
    """Results for one schema: generations by their end, texts that are wrong, tokens of all generations, and how many
    of the generations that ended by `max_tokens` did so in a string."""

    ends: Counter[str]
    wrong: list[str]
    tokens: int
    in_string: int

    @property
    def by_length(self) -> float:
        """The share that ended by `max_tokens`."""
        return self.ends["length"] / self.ends.total()

    @property
    def is_right(self) -> bool:
        """All that ended by itself is valid, and nothing ended otherwise than by itself or by its length."""
        return not self.wrong and self.ends.keys() <= {"stop", "length"}


def main() -> None:
    """Generates, judges, prints a line for each schema and writes the file that was asked for."""
    options = _options()
    llm = LLM("demo", max_num_seqs=ROWS, max_num_batched_tokens=2 * ROWS)
    constraints = llm.engine.constraints
    assert constraints is not None

    def accepts(constraint: Constraint) -> None:
        constraints.compile(SamplingParams(structured_outputs=constraint), frozenset())

    result: dict[str, Any] = {"generations": options.generations, "max_tokens": options.max_tokens}
    heads = []
    for name, schemas in object_schemas(_data(), options.schemas, accepts).items():
        before = llm.engine.stats()
        found = _generated(llm, schemas, options.generations, options.max_tokens)
        after = llm.engine.stats()
        counts = {key: getattr(after.core, key) - getattr(before.core, key) for key in COUNTS}
        rows = [_row(each, one) for each, one in zip(schemas, found, strict=True)]
        result[name] = {**counts, "schemas": rows}
        heads.append(_headline(name, found))
        print(heads[-1], flush=True)
    result["compiled_after_ready"] = llm.engine.stats().device.compiles_after_ready
    llm.close()
    write_json(options.json, result)
    print("; ".join(heads))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--schemas", type=int, default=5, help="schemas of each list")
    parser.add_argument("--generations", type=int, default=4, help="of each schema, 128 at most")
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS)
    return parser.parse_args()


def _data() -> Path:
    return Path(os.environ.get("JAXINFER_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


def _generated(llm: LLM, schemas: list[ObjectSchema], generations: int, max_tokens: int) -> list[Found]:
    """Generate texts for each schema, all at once, and return what was found."""
    asked = [[{"role": "user", "content": each.prompt}] for each in schemas]
    params = [
        SamplingParams(
            n=generations,
            temperature=1.0,
            max_tokens=max_tokens,
            seed=number,
            structured_outputs=Constraint.schema(each.schema, each.name),
        )
        for number, each in enumerate(schemas)
    ]
    outputs = llm.chat(asked, params)
    return [_judged(each.schema, output.outputs) for each, output in zip(schemas, outputs, strict=True)]


def _judged(schema: dict[str, Any], outputs: list[CompletionOutput]) -> Found:
    validator = validator_for(schema, default=jsonschema.Draft202012Validator)
    judge = validator(schema, format_checker=validator.FORMAT_CHECKER)
    ends = Counter(str(output.finish_reason) for output in outputs)
    wrong = [output.text for output in outputs if output.finish_reason == "stop" and not _is_valid(judge, output.text)]
    in_string = sum(output.finish_reason == "length" and _in_string(output.text) for output in outputs)
    return Found(ends, wrong, sum(len(output.token_ids) for output in outputs), in_string)


def _in_string(text: str) -> bool:
    """Return whether a JSON text that breaks off ends in a string."""
    return re.sub(r"\\.", "", text).count('"') % 2 == 1


def _is_valid(judge: Any, text: str) -> bool:
    try:
        return judge.is_valid(json.loads(text))
    except ValueError:
        return False


def _row(asked: ObjectSchema, found: Found) -> dict[str, Any]:
    total = found.ends.total()
    note = "" if found.is_right else f"  WRONG: {found.wrong[:1]} {dict(found.ends)}"
    print(f"{found.by_length:6.1%} by length, {found.tokens / total:5.1f} tokens  {asked.name}{note}", flush=True)
    return {
        "name": asked.name,
        "schema": asked.schema,
        "prompt": asked.prompt,
        "ends": dict(found.ends),
        "wrong": found.wrong,
        "by_length": round(found.by_length, 4),
        "in_string": found.in_string,
        "mean_tokens": round(found.tokens / total, 1),
    }


def _headline(name: str, found: list[Found]) -> str:
    total = sum(each.ends.total() for each in found)
    wrong, length = sum(len(each.wrong) for each in found), sum(each.ends["length"] for each in found)
    other = total - length - sum(each.ends["stop"] for each in found)
    in_string = sum(each.in_string for each in found)
    above = sum(each.by_length > MOST_BY_LENGTH for each in found)
    return (
        f"{name}: {len(found)} schemas, {total} generations: {wrong} invalid, {other} failed, {length / total:.1%} by "
        f"length ({in_string} of {length} in a string; {above} schemas above {MOST_BY_LENGTH:.0%})"
    )


if __name__ == "__main__":
    main()
