"""An EAGLE-3 head that drafts: its features and blocks have no holes, and its drafts are those of NumPy."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.step.layouts import Layouts
from jaxinfer.engine.step.plan import StepKind
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.layers.dispatch import Dispatch
from jaxinfer.models.eagle3 import Eagle3Model
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.fit import memory
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.platform.autotune_cache import shapes_digest
from jaxinfer.runner.programs.key import program_key
from jaxinfer.runner.step.draft_model import with_draft
from jaxinfer.speculation import Speculation
from tests.drafts.drafting import PROMPT, draft_in_turns, drawn, fail_drafting_steps
from tests.drafts.drafting import WITH_ONE_TOKEN as REQUESTS
from tests.models.dense import dense_attention
from tests.models.eagle3_folder import RAW, random_tensors, tiny_head
from tests.models.eagle3_numpy import NumpyEagle3
from tests.runner.tiny import drive, make_core, tiny_model, tiny_shapes, twin, with_blocks

THREE = Speculation(3, method="eagle3")
SIZES = {"max_num_seqs": 4, "max_num_batched_tokens": 16}


def runner_of(model: LoadedModel, **sizes) -> JaxRunner:
    shapes = tiny_shapes(model, **{**SIZES, "drafting": THREE, **sizes})
    runner = JaxRunner(model, shapes)
    runner.warm_up(when="lazy")
    return runner


@cache
def with_head() -> JaxRunner:
    target = tiny_model()
    return runner_of(with_draft(target, tiny_head(target)))


def tokens_of(core: EngineCore, requests=None) -> dict[tuple[str, int], list[int]]:
    return {key: output.tokens for key, output in drive(core, requests or REQUESTS).items()}


@cache
def plain_runner() -> JaxRunner:
    model = tiny_model()
    return JaxRunner(model, tiny_shapes(model, **SIZES))


@cache
def plain_tokens() -> dict[tuple[str, int], list[int]]:
    return tokens_of(make_core(plain_runner(), ahead=1))


class NumpyChains:
    """What a head drafts greedily after a text, by dense attention over all of it."""

    def __init__(self, model: LoadedModel):
        head = model.draft
        assert isinstance(head, Eagle3Model)
        self._model, self._layers = model, head.eagle.layers
        embedding = np.asarray(model.build(model.weights).embed[...])  # pyright: ignore[reportIndexIssue]
        self._head = NumpyEagle3(RAW, random_tensors(RAW) | {"embed_tokens.weight": embedding})
        self._run = jax.jit(partial(_tapped, model, self._layers))

    def drafts(self, text: list[int], count: int) -> list[int]:
        padded = np.zeros(96, np.int32)
        padded[: len(text)] = text
        tapped = self._run(self._model.weights, padded)
        features = self._head.features([np.asarray(x, np.float64)[: len(text) - 1] for x in tapped])
        return self._head.chain(features, text, count)


def _tapped(model: LoadedModel, layers: tuple[int, ...], weights, tokens):
    attend = dense_attention(model.config)
    run = model.build(weights).run(tokens, jnp.arange(len(tokens)), (), None, attend, Dispatch(), layers)
    return run.tapped


class Spy:
    """Collects greedy rows' drafts: texts by the newest token's position, and what was drafted after them."""

    def __init__(self, runner: JaxRunner, monkeypatch: pytest.MonkeyPatch):
        self.found: list[tuple[list[int], list[int]]] = []
        self._runner = runner
        self._run = runner.run
        monkeypatch.setattr(runner, "run", self._drafted)

    def _drafted(self, step):
        """By the programs that show drafts; they give the same as `speculate`."""
        if step.kind is not StepKind.SPECULATE:
            return self._run(step)
        begun = self._runner.begin(step)
        rows = np.asarray(begun.drafted)
        history = np.asarray(self._runner.stages[0].slots.state.history)
        slots = Layouts(self._runner.shapes).multi_token(step.bucket).views(step.array)["slots"]
        for slot, (last, length, count, is_open, _, *drafts) in zip(slots, rows.tolist(), strict=True):
            if is_open and count:
                text = history[slot, : length + 1].tolist()
                assert text[-1] == last
                self.found.append((text, drafts[:count]))
        return self._runner.finish(step, begun, np.full(step.num_rows, 99, np.int32))


def greedy_requests() -> list[GenerateRequest]:
    asked = {"temperature": 0.0, "max_tokens": 16}
    return [
        GenerateRequest("long", PROMPT, drawn(1, **asked)),
        GenerateRequest("hit", PROMPT[:30], drawn(2, **asked)),
        GenerateRequest("short", PROMPT[5:8], drawn(3, **asked)),
        GenerateRequest("one", PROMPT[:1], drawn(4, **asked)),
        GenerateRequest("forks", PROMPT[5:12], drawn(5, n=3, **asked)),
    ]


@pytest.mark.long
@pytest.mark.parametrize("sizes", [{}, {"blocks": 30, "caching": False}])
@pytest.mark.parametrize("ahead", [0, 1])
def test_drafts_are_those_of_numpy(sizes: dict, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After prompts in chunks of 16 tokens at most, hits in the prefix cache, forks, drafts that were kept and not,
    and preemptions. The second time all prompts are in the cache, with the head's keys and values."""
    runner = with_blocks(monkeypatch, with_head(), sizes.get("blocks", 400))
    runner.reset()
    spy, chains = Spy(runner, monkeypatch), NumpyChains(runner.stages[0].model)
    core = make_core(runner, ahead=ahead, clock=lambda: 0, caching=sizes.get("caching", True))
    for _ in range(2):
        assert tokens_of(core, greedy_requests()) == plain_greedy()
    assert len(spy.found) > 30
    wrong = [(text, drafts) for text, drafts in spy.found if chains.drafts(text, len(drafts)) != drafts]
    assert not wrong, f"{len(wrong)} of {len(spy.found)}"
    if sizes:
        assert core.stats().scheduler.preemptions > 0
    else:
        assert core.stats().admission.prefix_hits > 30


@pytest.mark.long
@pytest.mark.parametrize(("steps", "ahead"), [(1, 1), (11, 3)])
def test_plain_steps_leave_no_hole(steps: int, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = with_head()
    runner.reset()
    spy, chains = Spy(runner, monkeypatch), NumpyChains(runner.stages[0].model)
    core = make_core(runner, ahead=ahead, clock=lambda: 0)
    draft_in_turns(core, steps, monkeypatch)
    assert tokens_of(core, greedy_requests()) == plain_greedy()
    assert min(core.stats().steps.decode_steps, len(spy.found)) > 4
    assert [drafts for _, drafts in spy.found] == [chains.drafts(text, len(drafts)) for text, drafts in spy.found]


@pytest.mark.long
def test_mixed_steps_leave_no_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row decodes beside another's prompt: the token after its newest one is not known yet."""
    target = tiny_model()
    runner = runner_of(with_draft(target, tiny_head(target)), max_num_batched_tokens=4)
    spy, chains = Spy(runner, monkeypatch), NumpyChains(runner.stages[0].model)
    core = make_core(runner, ahead=1, clock=lambda: 0)
    core.add_request(GenerateRequest("first", PROMPT[:5], drawn(1, temperature=0.0, max_tokens=40)))
    for _ in range(3):
        core.step()
    core.add_request(GenerateRequest("late", PROMPT[10:34], drawn(2, temperature=0.0, max_tokens=4)))
    while core.has_work():
        core.step()
    assert core.stats().steps.mixed_steps > 6
    assert len(spy.found) > 10
    assert [drafts for _, drafts in spy.found] == [chains.drafts(text, len(drafts)) for text, drafts in spy.found]


@cache
def plain_greedy() -> dict[tuple[str, int], list[int]]:
    return tokens_of(make_core(plain_runner(), ahead=1), greedy_requests())


@pytest.mark.few(1)
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_tokens_are_those_of_plain_decoding(ahead: int) -> None:
    core = make_core(with_head(), ahead=ahead, clock=lambda: 0)
    for _ in range(2):
        assert tokens_of(core) == plain_tokens()
    stats = core.stats()
    assert stats.drafts.draft_tokens > 200
    assert stats.admission.prefix_hits > 0


def test_tokens_are_right_after_preemptions_and_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    device = with_blocks(monkeypatch, with_head(), 24)
    fail_drafting_steps(monkeypatch, device, (3, 8))
    core = make_core(device, ahead=1, caching=False, clock=lambda: 0)
    assert tokens_of(core) == plain_tokens()
    assert core.stats().scheduler.preemptions > 0
    assert core.stats().core.step_faults == 2


def test_broken_features_change_nothing() -> None:
    """A head whose every number is NaN."""
    target = tiny_model()
    head = tiny_head(target)
    broken = head.__class__(**{**vars_of(head), "weights": tuple(leaf * jnp.nan for leaf in head.weights)})
    core = make_core(twin(with_head(), with_draft(target, broken)), ahead=1, clock=lambda: 0)
    assert tokens_of(core) == plain_tokens()
    assert core.stats().drafts.draft_tokens > max(100, 10 * core.stats().drafts.accepted_tokens)


def vars_of(head: Eagle3Model) -> dict:
    return {name: getattr(head, name) for name in head.__dataclass_fields__}


def test_programs_follow_from_the_head() -> None:
    target = tiny_model()
    shapes = tiny_shapes(target, drafting=THREE)
    heads = [tiny_head(target, **changes) for changes in ({}, {"norm_before_residual": True})]
    models = [target, *(with_draft(target, head) for head in heads)]
    for key in (lambda m: program_key(m, shapes, {}), lambda m: shapes_digest(m, shapes)):
        assert len({key(model) for model in models}) == 3


@pytest.mark.long
def test_features_and_blocks_are_counted() -> None:
    target = tiny_model((12, None))
    model = with_draft(target, tiny_head(target))
    shapes = tiny_shapes(model, drafting=THREE)
    kv = JaxRunner(model, shapes).stages[0].kv
    sizes = [array.nbytes // shapes.groups[0].num_blocks for array in kv[:3]]
    assert memory.block_costs(model, shapes) == [sizes[0], sizes[1] + sizes[2]]
    assert memory.feature_bytes(model, shapes) == sum(array.nbytes for array in kv[3:]) == 36 * (32 + 2) * 4 * 9
    assert memory.feature_bytes(target, shapes) == 0
