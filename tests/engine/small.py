"""A small engine on the simulated device, and what a request must give there."""

import time
from collections import abc
from typing import Any

import numpy as np

from jaxinfer.config import CacheConfig, SchedulerConfig
from jaxinfer.engine.constraint import Constraints
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.device.calls import Call, SetMasks
from jaxinfer.engine.device.in_flight import BeforeSampling
from jaxinfer.engine.device.runner import Runner
from jaxinfer.engine.scheduler.policy import Policy
from jaxinfer.engine.sequence import Sequence
from jaxinfer.engine.step.plan import StepPlan
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.engine.types import GenerateRequest, ModelInfo, TokenDelta
from jaxinfer.sampling import SamplingParams
from tests.engine.expected import expected_tokens
from tests.engine.ledger import live_sequences
from tests.engine.plan_driven import PlanDriven, hand_over_plans
from tests.engine.rules_model import kept
from tests.engine.stepping import step_deltas
from tests.engine.toy_grammar import Toy

VOCABULARY = 61


def small_shapes(blocks: int = 40, window: int | None = None, **changes: Any) -> EngineShapes:
    sizes: dict[str, Any] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_scored": 4,
        "max_model_len": 48,
        "block_size": 4,
        "vocab_size": VOCABULARY,
        "admit_slots": 2,
        "copy_blocks": 2,
        **changes,
    }
    return EngineShapes(groups=(KVGroup(window, blocks),), **sizes)


class RecordingRunner(PlanDriven):
    """Keeps the plans and the masks that it was given."""

    def __init__(self, shapes: EngineShapes, **options: Any):
        super().__init__(shapes, **options)
        self.plans: list[StepPlan] = []
        self.masks: list[SetMasks] = []

    def submit(self, call: Call) -> None:
        if isinstance(call, SetMasks):
            self.masks.append(call)
        super().submit(call)

    def dispatch(self, plan: StepPlan, before_sampling: BeforeSampling | None = None) -> Any:
        self.plans.append(plan)
        return super().dispatch(plan, before_sampling)


def small_core(
    runner: Runner | None = None,
    *,
    ahead: int | None = 0,
    policy: Policy | None = None,
    eos: tuple[int, ...] = (),
    watermark: float = 0.01,
    caching: bool = True,
    kept: int | None = None,
    clock: abc.Callable[[], int] = time.monotonic_ns,
    constraints: Constraints | None = None,
    **config: Any,
) -> EngineCore:
    runner = runner or RecordingRunner(small_shapes())
    shapes = runner.shapes
    info = ModelInfo(
        "simulated",
        shapes.max_model_len,
        shapes.vocab_size,
        shapes.max_num_seqs,
        shapes.block_size,
        shapes.groups[0].num_blocks,
    )
    core = EngineCore(
        runner,
        info,
        scheduler=SchedulerConfig(max_num_seqs=shapes.max_num_seqs, **config),
        cache=CacheConfig(kv_watermark=watermark, enable_prefix_caching=caching, prefix_cache_max_tokens=kept),
        policy=policy,
        eos_ids=eos,
        steps_ahead=ahead,
        clock=clock,
        constraints=constraints,
    )
    hand_over_plans(core)
    return core


def ask(name: str, prompt: np.ndarray | abc.Sequence[int] | int, tokens: int = 6, **changes: Any) -> GenerateRequest:
    """A request; a number stands for a prompt of that length that shares nothing with one of another name."""
    if isinstance(prompt, int):
        prompt = [sum(map(ord, name)) % VOCABULARY, *((i * 7 + len(name)) % VOCABULARY for i in range(prompt - 1))]
    return GenerateRequest(name, prompt, SamplingParams(max_tokens=tokens, **{"seed": 5, **changes}))


def right(core: EngineCore, request: GenerateRequest, index: int = 0) -> list[int]:
    """What sequence `index` must give where nothing stops it but its grammar and its rules."""
    params, toy = request.sampling, Toy.of(request.sampling)
    stops = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(core.eos_ids))
    count = params.max_tokens or 0

    def allowed(outputs: list[int]) -> list[int]:
        ids = range(VOCABULARY) if toy is None else toy.allowed(outputs, stops, VOCABULARY)
        return kept(params, ids, outputs, stops)

    windows = [group.window for group in core.runner.shapes.groups]
    return expected_tokens(
        request.prompt_token_ids,
        count if toy is None else min(count, toy.length),
        seed=params.seed or 0,
        index=index,
        windows=windows,
        vocab_size=VOCABULARY,
        allowed=allowed,
    )


Got = dict[tuple[str, int], list[TokenDelta]]


def run(core: EngineCore, got: Got | None = None) -> Got:
    """Steps until nothing is left; deltas by sequence."""
    got = {} if got is None else got
    for _ in range(2000):
        if not core.has_work():
            break
        step(core, got)
    assert not core.has_work(), "the engine hangs"
    assert all(pool.num_in_use == 0 for pool in core.scheduler.state.kv.pools)
    assert core.scheduler.state.table.num_taken == 0
    return got


def step(core: EngineCore, got: Got) -> None:
    for delta in step_deltas(core):
        got.setdefault((delta.request_id, delta.index), []).append(delta)


def tokens_of(deltas: abc.Sequence[TokenDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def sequence_of(core: EngineCore, name: str, index: int = 0) -> Sequence:
    """A request's live sequence."""
    return next(sequence for sequence in live_sequences(core, name) if sequence.index == index)
