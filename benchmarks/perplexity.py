"""Perplexity of the demo model on held-out answers, with its weights held in each of the ways of `--quantization`, and
keys and values kept in each of those of `--kv-cache-dtype`.

The texts are conversations of questions that training never saw, until there are enough tokens of answers; tokens are
scored by an engine's log-probabilities of prompts. The model has learned to say the answers, and is nearly certain of
them; it was never taught the questions, of which it is far less so: both are shown. The first row, all as it is, is
what the others are compared with.

    python benchmarks/perplexity.py [--json FILE] [--tokens N] [--dtype NAME]
"""

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import NamedTuple, get_args

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from demo_data import Conversation, asked
from demo_evaluation.questions import held_out
from demo_training.tokens import Document, document_of
from tokenizers import Tokenizer

from benchmarks.report import write_json
from jaxinfer.build import DEMO_FOLDER
from jaxinfer.config import Quantization
from jaxinfer.llm import LLM
from jaxinfer.runner.fit.memory import block_bytes
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.sampling import SamplingParams


class Row(NamedTuple):
    """One way to hold weights, and keys and values: perplexity of answers, and of whole conversations.

    weight_bytes, kv_bytes: of all weights on the device, and of a token's keys and values.
    """

    quantization: str
    kv_cache_dtype: str
    answers: float
    conversations: float
    weight_bytes: int
    kv_bytes: int

    def against(self, plain: "Row") -> tuple[float, float]:
        """The changes of both perplexities, as shares."""
        return self.answers / plain.answers - 1, self.conversations / plain.conversations - 1


def answers(tokens: int) -> Iterator[Document]:
    """Held-out conversations, until so many tokens of answers have come."""
    tokenizer, said = Tokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json")), 0
    for question in held_out(count=2 * tokens // 10):
        document = document_of(tokenizer, Conversation("", question.tools, (*asked(question), question.answer)))
        yield document
        said += sum(document.said)
        if said >= tokens:
            return
    raise SystemExit(f"the held-out answers have {said} tokens, fewer than {tokens}")


def ways() -> Iterator[tuple[str, str]]:
    """Yield types of weights, with keys and values as they are; then types of these, with weights as they are."""
    yield from ((name, "auto") for name in get_args(Quantization))
    yield from (("none", name) for name in ("bf16", "fp8", "int8"))


def measure(quantization: str, kv_cache_dtype: str, documents: list[Document], dtype: str) -> Row:
    """The perplexities over all documents."""
    flags = {"enable_prefix_caching": False, "max_num_seqs": 4, "compile": "lazy"}
    llm = LLM("demo", quantization=quantization, kv_cache_dtype=kv_cache_dtype, dtype=dtype, **flags)
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    outputs = llm.generate([{"prompt_token_ids": document.ids} for document in documents], params, use_tqdm=False)
    of_answers, of_all = [], []
    for document, output in zip(documents, outputs, strict=True):
        assert output.prompt_logprobs is not None
        for token, said, scores in zip(document.ids, document.said, output.prompt_logprobs, strict=True):
            if scores is not None:  # nothing comes before the first token
                of_all.append(scores[token].logprob)
                of_answers += of_all[-1:] if said else []
    runner = llm.engine.runner
    assert isinstance(runner, JaxRunner)
    held = {id(array): array.nbytes for array in (*runner.stages[0].model.weights, *runner.stages[0].model.head)}
    perplexities = math.exp(-mean(of_answers)), math.exp(-mean(of_all))
    kept = sum(block_bytes(runner.stages[0].model, group, 1) for group in range(len(runner.stages[0].kv)))
    return Row(quantization, kv_cache_dtype, *perplexities, sum(held.values()), kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--tokens", type=int, default=20_000, metavar="N", help="default: %(default)s")
    parser.add_argument("--dtype", default="float32", help="of activations and of what is not quantised")
    asked_for = parser.parse_args()
    documents = list(answers(asked_for.tokens))
    heads = f"{'answers':>9} {'change':>8} {'conversations':>14} {'change':>8} {'bytes':>11} {'a token':>8}"
    print(f"{'weights':10} {'KV':5} {heads}")
    rows: list[Row] = []
    for quantization, kv_cache_dtype in ways():
        row = measure(quantization, kv_cache_dtype, documents, asked_for.dtype)
        rows.append(row)
        first, second = (f"{change:+8.2%}" for change in row.against(rows[0]))
        figures = f"{row.answers:9.5f} {first} {row.conversations:14.4f} {second} {row.weight_bytes:11,}"
        print(f"{row.quantization:10} {row.kv_cache_dtype:5} {figures} {row.kv_bytes:8,}", flush=True)
    told = [{**row._asdict(), "change": row.against(rows[0])} for row in rows]
    tokens = {
        "answers": sum(sum(one.said) for one in documents),
        "conversations": sum(len(one.ids) for one in documents),
    }
    write_json(asked_for.json, {"tokens": tokens, "dtype": asked_for.dtype, "rows": told})


if __name__ == "__main__":
    main()
