"""A quick look while training runs: the share of validation questions whose whole answer is the most likely one."""

from collections import Counter
from random import Random
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from demo_data import Conversation, Question, asked
from demo_data.topics import NOT_JUDGED, PLAIN, WITH_TOOLS, draw
from tokenizers import Tokenizer

from demo_training.model import Params, Trainee
from demo_training.tokens import SHAPES, Batch, Document, document_of, pack

_ROWS, _LENGTH = SHAPES[1]


class Sample(NamedTuple):
    """Batches of one document a row, and each document's kind."""

    batches: list[Batch]
    kinds: list[str]


def sample(tokenizer: Tokenizer, seed: int, each: int = 24) -> Sample:
    """`each` validation questions of every topic, a third of them with thinking."""
    rng = Random(seed)
    topics = [topic for topic in (*PLAIN, *WITH_TOOLS) if topic not in NOT_JUDGED]
    questions = [draw(rng, topic, i < each // 3, "validation") for topic in topics for i in range(each)]
    pairs = [(question.kind, document_of(tokenizer, _conversation(question))) for question in questions]
    pairs = [(kind, _last_only(document)) for kind, document in pairs if len(document.ids) <= _LENGTH]
    rows = [[document] for _, document in pairs]
    rows += [[]] * (-len(rows) % _ROWS)
    batches = [pack(rows[i : i + _ROWS], _LENGTH) for i in range(0, len(rows), _ROWS)]
    return Sample(batches, [kind for kind, _ in pairs])


def exact(trainee: Trainee, params: Params, sample: Sample) -> dict[str, float]:
    """Return for each kind the share of answers that greedy decoding would give: every token is the most likely one."""
    likely = jax.jit(lambda params, batch: jnp.argmax(trainee.scored(params, batch), axis=-1))
    right: list[bool] = []
    for batch in sample.batches:
        wrong = (np.asarray(likely(params, batch)) != batch.targets) & (batch.weights > 0)
        rows = np.bincount(batch.at // _LENGTH, weights=wrong, minlength=_ROWS)
        right += (rows == 0).tolist()
    totals, hits = Counter(sample.kinds), Counter[str]()
    for kind, hit in zip(sample.kinds, right, strict=False):
        hits[kind] += hit
    return {kind: hits[kind] / totals[kind] for kind in sorted(totals)}


def _conversation(question: Question) -> Conversation:
    return Conversation("", question.tools, (*asked(question), question.answer))


def _last_only(document: Document) -> Document:
    """Only the last answer is looked at."""
    said = np.array(document.said)
    starts = np.flatnonzero(np.diff(said.astype(int)) == 1)
    said[: starts[-1] + 1] = False
    return Document(document.ids, said.tolist())
