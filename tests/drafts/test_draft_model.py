"""A draft model: its blocks have no holes, what it costs, and which models cannot draft."""

from dataclasses import replace
from functools import cache

import jax.numpy as jnp
import pytest

from jaxinfer.engine.core import EngineCore
from jaxinfer.errors import ModelError
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.models.loaded import LoadedModel, random_model
from jaxinfer.runner.drafting import drafter
from jaxinfer.runner.fit import memory
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.platform.autotune_cache import shapes_digest
from jaxinfer.runner.programs.key import program_key
from jaxinfer.runner.step.draft_model import declared_draft, draft_shapes, followed_group, with_draft
from jaxinfer.speculation import Speculation
from tests.drafts.drafting import REQUESTS, draft_in_turns, fail_drafting_steps
from tests.models.goldens import GOLDENS
from tests.runner.tiny import drive, make_core, near_model, tiny_model, tiny_shapes, twin, with_blocks
from tests.turns import one_of

THREE = Speculation(3, method="draft_model")
SIZES = {"max_num_seqs": 4, "max_num_batched_tokens": 16}


def tokens_of(core: EngineCore) -> dict[tuple[str, int], list[int]]:
    return {key: output.tokens for key, output in drive(core, REQUESTS).items()}


@cache
def plain_tokens() -> dict[tuple[str, int], list[int]]:
    model = tiny_model()
    return tokens_of(make_core(JaxRunner(model, tiny_shapes(model, **SIZES)), ahead=1))


def for_itself(windows: tuple[int | None, ...] = (None, None), longest: int = 64) -> JaxRunner:
    """longest: tokens that rows catch up with at once, which a test sets: programs are traced when first called."""
    return _for_itself(windows, longest)


@cache
def _for_itself(windows: tuple[int | None, ...], longest: int) -> JaxRunner:
    model = tiny_model(windows)
    return runner_of(model, model)


def runner_of(model: LoadedModel, draft: LoadedModel) -> JaxRunner:
    runner = JaxRunner(with_draft(model, draft), tiny_shapes(model, **SIZES, drafting=THREE))
    runner.warm_up(when="lazy")
    return runner


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("windows", "ahead"), one_of(2, [((None, None), 3), ((None, None), 0), ((9, 20), 1), ((None, 12), 1)])
)
def test_a_model_that_drafts_for_itself_is_always_right(windows: tuple[int | None, ...], ahead: int) -> None:
    """No hole in its blocks: after prompts in chunks, hits in the prefix cache, forks, drafts that were all kept. It
    draws with the same numbers, so that it is right at any temperature."""
    core = make_core(for_itself(windows), ahead=ahead, clock=lambda: 0)
    for _ in range(2):
        drive(core, REQUESTS)
    stats = core.stats()
    assert None not in windows or stats.admission.prefix_hits > 0
    assert stats.drafts.accepted_tokens == stats.drafts.draft_tokens > 150


@pytest.mark.long
def test_it_is_right_after_preemptions_and_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    device = with_blocks(monkeypatch, for_itself(), 24)
    fail_drafting_steps(monkeypatch, device, (3, 8))
    core = make_core(device, ahead=1, caching=False, clock=lambda: 0)
    drive(core, REQUESTS)
    stats = core.stats()
    assert stats.scheduler.preemptions > 0
    assert stats.core.step_faults == 2
    assert stats.drafts.accepted_tokens == stats.drafts.draft_tokens > 40


@pytest.mark.long
@pytest.mark.parametrize(("steps", "ahead"), [(1, 1), (6, 0), (11, 3)])
def test_plain_steps_leave_no_hole(steps: int, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows catch up with what they missed, in several passes, also beside rows that missed less."""
    monkeypatch.setattr(drafter, "_LONGEST", 4)
    core = make_core(for_itself(longest=4), ahead=ahead, clock=lambda: 0)
    draft_in_turns(core, steps, monkeypatch)
    assert tokens_of(core) == plain_tokens()
    stats = core.stats()
    assert stats.drafts.accepted_tokens == stats.drafts.draft_tokens > 20
    assert min(stats.steps.decode_steps, stats.steps.speculate_steps) > 4


@pytest.mark.long
@pytest.mark.parametrize("rows", one_of(2, [288, 312]))
def test_a_head_of_more_rows_or_fewer(rows: int) -> None:
    """Tables of one family are padded differently."""
    model = tiny_model()
    draft = near_model(model)
    config = replace(draft.config, vocab_size=rows)
    more = max(rows - model.config.vocab_size, 0)
    cut = [jnp.pad(leaf, ((0, more), (0, 0)))[:rows] if leaf.shape[:1] == (300,) else leaf for leaf in draft.weights]
    head = jnp.pad(draft.head[0], ((0, more), (0, 0)), constant_values=9.0)[:rows]
    drafts = replace(random_model(config, dtype=model.dtype), weights=tuple(cut), head=(head,))
    core = make_core(runner_of(model, drafts), ahead=1, clock=lambda: 0)
    assert tokens_of(core) == plain_tokens()
    assert core.stats().drafts.accepted_tokens > 20


def test_broken_drafts_change_nothing() -> None:
    """A draft model whose every number is NaN."""
    model = tiny_model()
    broken = replace(model, weights=tuple(leaf * jnp.nan for leaf in model.weights))
    core = make_core(twin(for_itself(), with_draft(model, broken)), ahead=1, clock=lambda: 0)
    assert tokens_of(core) == plain_tokens()
    assert core.stats().drafts.draft_tokens > max(100, 10 * core.stats().drafts.accepted_tokens)


def test_a_block_costs_what_both_models_keep() -> None:
    model = tiny_model((12, None))
    pair = with_draft(model, near_model(model))
    shapes = tiny_shapes(pair, drafting=THREE)
    assert followed_group(model.config) == 1
    costs, kv = memory.block_costs(pair, shapes), JaxRunner(pair, shapes).stages[0].kv
    sizes = [array.nbytes // shapes.groups[0].num_blocks for array in kv]
    assert costs == [sizes[0], sizes[1] + sizes[2]]
    assert len(draft_shapes(pair, shapes).groups) == 1


@pytest.mark.long
def test_weights_of_both_are_counted() -> None:
    model = tiny_model()
    pair = with_draft(model, near_model(model))
    shapes = tiny_shapes(model, drafting=THREE)
    limit = 64 << 20
    with_both, alone = (memory.device_blocks(m, shapes, limit=limit, cache=None)[0] for m in (pair, model))
    assert with_both < alone


def test_programs_follow_from_the_draft_model() -> None:
    model = tiny_model()
    shapes = tiny_shapes(model, drafting=THREE)
    one, other = with_draft(model, near_model(model)), with_draft(model, tiny_model((None, 12)))
    for key in (lambda m: program_key(m, shapes, {}), lambda m: shapes_digest(m, shapes)):
        assert len({key(model), key(one), key(other)}) == 3
        assert key(one) == key(with_draft(model, near_model(model)))


def config_like(folder: str, length: int) -> DecoderConfig:
    return declared_draft(GOLDENS / folder, tiny_model().config, length)


def test_models_that_cannot_draft_are_refused() -> None:
    with pytest.raises(ModelError, match="max_model_len is 100000"):
        config_like("llama3", 100_000)
    with pytest.raises(ModelError, match="sees more than the 12 tokens"):
        declared_draft(GOLDENS / "llama3", tiny_model((12, 5)).config, 16)
