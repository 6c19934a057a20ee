"""Layers with windows: the blocks that they hold, and NaN behind every window, beside a judge that keeps no KV."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.kv.manager import KVCache
from jaxinfer.engine.scheduler.state import SchedulerState
from jaxinfer.engine.sequence import Status
from jaxinfer.engine.step.shapes import KVGroup
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.models.loaded import LoadedModel
from tests.engine.ledger import check_blocks, live_sequences
from tests.models.goldens import GOLDENS, load
from tests.runner.pairwise import pairwise
from tests.runner.poisoning import PoisoningRunner
from tests.runner.tiny import Judge, Outputs, check_all, drive, greedy, make_core, seeded, tiny_model, tiny_shapes

BLOCK, BLOCKS, BUDGET, CONTEXT, WINDOWS = 4, 160, 16, 208, 20
TINY = {"tiny, all windowed": (6, 6), "tiny, two windows": (9, None, 3)}
MODELS = [*TINY, "gemma2", "gemma3", "gpt_oss", "olmo3", "cohere2"]
DEFAULT = "gemma3"


@dataclass(frozen=True)
class Subject:
    """A model with windows, and what says which tokens are right."""

    model: LoadedModel
    judge: Judge

    @property
    def windows(self) -> list[int | None]:
        """Of its KV groups."""
        return [group.window for group in self.model.config.kv_groups]

    @property
    def longest(self) -> int:
        """Tokens of its longest window."""
        return max(window for window in self.windows if window is not None)

    def prompt(self, length: int, seed: int = 0) -> list[int]:
        return np.random.default_rng(seed).integers(3, self.model.config.vocab_size, length).tolist()


@cache
def subject_of(name: str) -> Subject:
    model = tiny_model(TINY[name]) if name in TINY else load(GOLDENS / name)
    return Subject(model, Judge(model, CONTEXT))


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Subject:
    return subject_of(request.param)


def in_pairs(**table: Sequence[Any]) -> pytest.MarkDecorator:
    """Cases of a test in which any two values of its parameters meet, the model among them."""
    cases = [
        pytest.param(*row.values(), marks=[] if row["subject"] == DEFAULT else pytest.mark.long)
        for row in pairwise({"subject": MODELS, **table})
    ]
    return pytest.mark.parametrize(("subject", *table), cases, indirect=["subject"])


@cache
def _runner(judge: Judge) -> PoisoningRunner:
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": BUDGET, "max_model_len": CONTEXT, "copy_blocks": 2}
    shapes = tiny_shapes(judge.model, **sizes, block_size=BLOCK, blocks=BLOCKS + 1, decode_steps=3)
    runner = PoisoningRunner(judge.model, shapes)
    runner.warm_up(when="lazy")
    return runner


def core_of(
    subject: Subject, *, full: int = BLOCKS, windowed: int = BLOCKS, decode_steps: int = 1, **options: Any
) -> EngineCore:
    """An engine with so many blocks of groups without and with a window, and NaN wherever nobody may read."""
    runner = _runner(subject.judge)
    groups = [KVGroup(window, 1 + (full if window is None else windowed)) for window in subject.windows]
    runner.shapes = replace(runner.shapes, groups=tuple(groups), decode_steps=decode_steps)
    runner.core = make_core(runner, watermark=0.0, **options)
    return runner.core


def judged(
    subject: Subject,
    core: EngineCore,
    requests: Sequence[GenerateRequest],
    between: Callable[[EngineCore, int], None] | None = None,
) -> Outputs:
    """What came of `requests`: all tokens, each of them right; everybody's blocks add up in every step."""

    def checked(core: EngineCore, number: int) -> None:
        check_blocks(core)
        if between is not None:
            between(core, number)

    outputs = drive(core, requests, checked)
    for (name, _), output in outputs.items():
        (wanted,) = (request.sampling.max_tokens for request in requests if request.request_id == name)
        assert (output.error, len(output.tokens)) == (None, wanted)
    check_all(subject.judge, requests, outputs)
    return outputs


def state_of(core: EngineCore) -> SchedulerState:
    return core.scheduler.state


def most_blocks(window: int, step: int) -> int:
    """Blocks that a window's earlier tokens and the `step` positions after what was collected lie in at most."""
    return (window - 1 + step + BLOCK - 2) // BLOCK + 1


def fewest_blocks(subject: Subject) -> int:
    """Of a windowed group, below which request validation refuses a long request."""
    return (subject.longest + BUDGET) // BLOCK + 2


class BlockCounts:
    """Called between steps, of one sequence: the blocks that each group has in use."""

    def __init__(self) -> None:
        self.most: list[int] = []
        self.of_full: list[int] = []
        self._collected: int | None = None

    def __call__(self, core: EngineCore, number: int) -> None:
        state, (sequence,) = state_of(core), live_sequences(core)
        assert isinstance(state.kv, KVCache)
        in_use = [pool.num_in_use for pool in state.kv.pools]
        if sequence.status is not Status.RUNNING:
            self._collected = None
            return
        computed = int(state.table.computed[sequence.slot])
        if self._collected is not None:
            wanted = [self._wanted(window, computed) for window in state.kv.windows]
            assert in_use == wanted
            self.most = [max(pair) for pair in zip(self.most or in_use, in_use, strict=True)]
        self._collected = int(state.table.collected[sequence.slot])

    def _wanted(self, window: int | None, computed: int) -> int:
        """Blocks from the first that the oldest position not collected when the step was planned sees."""
        assert self._collected is not None
        first = 0 if window is None else max(0, self._collected - window + 1)
        return -(-computed // BLOCK) - first // BLOCK


@pytest.mark.long
@in_pairs(caching=[True, False], decode_steps=[1, 3], ahead=[0, 1])
def test_blocks_in_use_over_20_windows_of_generation(
    subject: Subject, caching: bool, decode_steps: int, ahead: int
) -> None:
    """Those of a windowed group are the window's and the steps' under way; those of the others grow."""
    count = WINDOWS * subject.longest
    core, counts = core_of(subject, ahead=ahead, decode_steps=decode_steps, caching=caching), BlockCounts()
    judged(subject, core, [GenerateRequest("long", subject.prompt(3), seeded(count, 5))], counts)
    for window, most in zip(subject.windows, counts.most, strict=True):
        if window is None:
            assert most >= (count - decode_steps * (ahead + 1)) // BLOCK
        elif decode_steps == 1:
            assert most == most_blocks(window, ahead + 1)
        else:
            assert most <= most_blocks(window, decode_steps * (ahead + 1))


@in_pairs(ahead=[0, 1], chunk=[1, 7, None])
def test_blocks_in_use_over_a_prompt_of_20_windows(subject: Subject, ahead: int, chunk: int | None) -> None:
    core, counts = core_of(subject, ahead=ahead, long_prefill_token_threshold=chunk), BlockCounts()
    prompt = subject.prompt(WINDOWS * subject.longest)
    judged(subject, core, [GenerateRequest("long", prompt, seeded(9, 5))], counts)
    for window, most in zip(subject.windows, counts.most, strict=True):
        if window is None:
            assert most == -(-(len(prompt) + 8) // BLOCK) or ahead
        else:
            assert most <= most_blocks(window, (chunk or BUDGET) * (ahead + 1))


@in_pairs(caching=[True, False])
def test_the_fewest_blocks_that_are_allowed_suffice(subject: Subject, caching: bool) -> None:
    """A pool of a window and a step carries 20 windows of prompt and 20 of output, without preemption."""
    core = core_of(subject, windowed=fewest_blocks(subject), caching=caching)
    length = (CONTEXT - 8) // 2
    judged(subject, core, [GenerateRequest("long", subject.prompt(length), greedy(length))])
    assert state_of(core).preemptions == 0


@pytest.mark.few(2)
@in_pairs(ahead=[0, 1, 3])
def test_prefix_hits(subject: Subject, ahead: int) -> None:
    """A prompt that goes on from 20 windows hits every whole block, and so does one that goes on from their middle:
    blocks that fell behind the window are kept while nobody needs their place."""
    core = core_of(subject, ahead=ahead)
    first = GenerateRequest("first", subject.prompt(9), seeded(WINDOWS * subject.longest - 20, 5))
    tokens = [*first.prompt_token_ids, *judged(subject, core, [first])["first", 0].tokens]
    middle = [*tokens[: 10 * subject.longest], *subject.prompt(3, 1)]
    again = [GenerateRequest("end", tokens, greedy(12)), GenerateRequest("middle", middle, seeded(12, 7))]
    outputs = judged(subject, core, again)
    assert outputs["end", 0].cached == (len(tokens) - 1) // BLOCK * BLOCK
    assert outputs["middle", 0].cached == 10 * subject.longest // BLOCK * BLOCK


@in_pairs(chunk=[3, None])
def test_a_prefix_whose_windowed_blocks_are_gone_is_computed_again(subject: Subject, chunk: int | None) -> None:
    """The full blocks of the middle are still there, and do not suffice. The end has its window, and is hit."""
    core = core_of(subject, windowed=fewest_blocks(subject), long_prefill_token_threshold=chunk)
    first = GenerateRequest("first", subject.prompt(9), seeded(WINDOWS * subject.longest - 20, 5))
    tokens = [*first.prompt_token_ids, *judged(subject, core, [first])["first", 0].tokens]
    end = GenerateRequest("end", tokens, greedy(12))
    assert judged(subject, core, [end])["end", 0].cached == (len(tokens) - 1) // BLOCK * BLOCK
    middle = GenerateRequest("middle", [*tokens[: 10 * subject.longest], *subject.prompt(3, 1)], greedy(12))
    assert judged(subject, core, [middle])["middle", 0].cached == 0


@pytest.mark.few(1)
@in_pairs(length=[1, 30, 33], decode_steps=[1, 3], caching=[True, False])
def test_forks(subject: Subject, length: int, decode_steps: int, caching: bool) -> None:
    """Three sequences of each prompt, which end in the midst of a block and at its end; some wait for a slot."""
    core = core_of(subject, decode_steps=decode_steps, caching=caching)
    count = 5 * subject.longest
    requests = [
        GenerateRequest("seeded", subject.prompt(length), seeded(count, 3, n=3)),
        GenerateRequest("greedy", subject.prompt(length, 1), greedy(9, n=2)),
        GenerateRequest("both", subject.prompt(length), seeded(9, 4, n=3)),
    ]
    judged(subject, core, requests)


@in_pairs(scarce=["full", "windowed"], ahead=[0, 1], caching=[True, False])
def test_preemption(subject: Subject, scarce: str, ahead: int, caching: bool) -> None:
    """Too few blocks of one group for all at once: some lose theirs, and go on where they were."""
    length = 8 * subject.longest
    if scarce == "windowed":
        core = core_of(subject, windowed=fewest_blocks(subject), ahead=ahead, caching=caching)
    else:
        if None not in subject.windows:
            pytest.skip("every layer has a window")
        core = core_of(subject, full=-(-length // BLOCK) + 20, ahead=ahead, caching=caching)
    requests = [
        GenerateRequest(f"r{i}", subject.prompt(5 + i, i), greedy(length) if i % 2 else seeded(length, i))
        for i in range(4)
    ]
    judged(subject, core, [*requests, GenerateRequest("fork", subject.prompt(30, 9), seeded(40, 9, n=2))])
    assert state_of(core).preemptions > 0


@in_pairs(ahead=[0, 1])
def test_chunks_between_multi_step_decodes(subject: Subject, ahead: int) -> None:
    """Long prompts enter piece by piece as slots come free; in between, everybody decodes several tokens a dispatch."""
    core = core_of(subject, decode_steps=3, ahead=ahead, long_prefill_token_threshold=5)
    lengths = (9, 60, 20, 75, 3, 64)
    requests = [
        GenerateRequest(f"r{i}", subject.prompt(length, i), greedy(50 - 5 * i)) for i, length in enumerate(lengths)
    ]
    judged(subject, core, requests)
