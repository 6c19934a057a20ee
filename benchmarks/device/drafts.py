"""Steps that draft, of the large model, by a smaller one and by an EAGLE-3 head, and the batch from which they do not
pay.

Weights are random, so that no draft would be kept: how many are is drawn here instead (`--synthetic-acceptance`, of
each draft whose predecessors are kept). The times are right: what a step computes does not depend on what is kept.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.device.context import Context
from benchmarks.device.counts import step_work
from benchmarks.device.rig import Rig, rig_runner, rig_shapes
from jaxinfer.config import CacheConfig, SchedulerConfig
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.device.calls import Reset
from jaxinfer.engine.types import GenerateRequest, ModelInfo
from jaxinfer.model_config.eagle3 import parse_eagle3
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.eagle3 import random_eagle3
from jaxinfer.models.loaded import LoadedModel, random_model
from jaxinfer.runner.drafting import speculate
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.platform.values import default_block_size, use_compile_cache
from jaxinfer.runner.platform.xla_options import reserve_memory
from jaxinfer.runner.step.draft_model import with_draft
from jaxinfer.sampling import SamplingParams
from jaxinfer.speculation import Method, Speculation

TOKENS = 4
"""Drafts of a row and step."""
_SPREAD = 2654435761
"""Knuth's multiplier: drawn tokens become numbers that look random."""


def measure(context: Context) -> None:
    """options: method (`draft_model` or `eagle3`)."""
    form, method = context.form, context.options["method"]
    reserve_memory(0.9)
    use_compile_cache(str(context.work / "xla"))
    model = _drafting(context, method)
    rows = sorted(form.draft_rows)
    length = form.context + 2 * (form.steps + 4) * (TOKENS + 1)
    shapes = rig_shapes(
        model.config, rows=rows[-1], tokens=form.context, length=length, block_size=default_block_size(),
        drafting=Speculation(TOKENS, method=method),
    )  # fmt: skip
    context.save(method=method, drafts=TOKENS, acceptance=context.acceptance)
    with _accepting(context.acceptance):
        runner, found = rig_runner(model, shapes, context.work), []
        runner.warm_up(when="lazy")
        for count in rows:
            found.append(_steps(context, runner, count) | _served(context, runner, count))
            context.save(batches=found, off_from=_off_from(found))


def _drafting(context: Context, method: Method) -> LoadedModel:
    form, dtype = context.form, jnp.dtype(context.form.dtype)
    target = random_model(parse_config(dict(form.large)), dtype=dtype)
    if method == "draft_model":
        draft: LoadedModel = random_model(parse_config(dict(form.draft)), dtype=dtype, seed=1)
    else:
        draft = random_eagle3(parse_eagle3(dict(form.head), target.config), dtype=dtype, seed=1)
    jax.block_until_ready((target.weights, draft.weights))
    return with_draft(target, draft)


@contextmanager
def _accepting(rate: float) -> Iterator[None]:
    """Has each draft be kept at this rate, where those before it are, as numbers made of drawn tokens decide."""

    def kept(drafts: jax.Array, count: jax.Array, tokens: jax.Array) -> jax.Array:
        used = jnp.arange(drafts.shape[1]) < count[:, None]
        place = jnp.arange(drafts.size, dtype=jnp.uint32).reshape(drafts.shape)
        drawn = tokens[:, :-1].astype(jnp.uint32) + place
        hit = (drawn * jnp.uint32(_SPREAD)) >> 16 < round(rate * 2**16)
        return jnp.sum(jnp.cumprod(hit & used, axis=1), axis=1, dtype=jnp.int32)

    own, speculate.kept = speculate.kept, kept
    yield
    speculate.kept = own


def _steps(context: Context, runner: JaxRunner, rows: int) -> dict[str, Any]:
    """Programs alone: a plain step and one that drafts, and the bytes of the second: weights of the model once, and of
    what drafts for it as often as it runs."""
    form, rig, model = context.form, Rig(runner), runner.stages[0].model
    assert model.draft is not None
    plain = median(rig.decode_seconds(rows, form.context, form.steps, form.repeats))
    drafting = median(rig.drafting_seconds(rows, form.context, form.steps, form.repeats))
    size = model.dtype.itemsize
    target = step_work(model.config, size, TOKENS + 1, rows, form.context)
    draft = step_work(model.draft.config, size, 1, rows, form.context)
    return {
        "rows": rows,
        "plain_ms": round(1e3 * plain, 4),
        "drafting_ms": round(1e3 * drafting, 4),
        "gb_per_s": round((target.bytes + TOKENS * draft.bytes) / drafting / 1e9, 2),
        "allowed": round(_expected(context.acceptance) * plain / drafting, 3),
    }


def _expected(rate: float) -> float:
    """Tokens of a row and step where each draft is kept at this rate while those before it are."""
    return sum(rate**number for number in range(TOKENS + 1))


def _served(context: Context, runner: JaxRunner, rows: int) -> dict[str, Any]:
    """Output tokens a second of an engine with so many requests: without drafts, and with drafts in every step."""
    found: dict[str, Any] = {}
    for name, drafts in (("plain", False), ("drafting", True)):
        _serve(context, runner, rows, drafts=drafts)  # compiles
        tokens, seconds = _serve(context, runner, rows, drafts=drafts)
        found[f"{name}_tokens_per_s"] = round(tokens / seconds, 1)
    return found | {"speedup": round(found["drafting_tokens_per_s"] / found["plain_tokens_per_s"], 3)}


def _serve(context: Context, runner: JaxRunner, rows: int, *, drafts: bool) -> tuple[int, float]:
    """Return tokens and seconds from where all rows decode until one ends."""
    core, steps = _core(runner, rows, drafts=drafts), context.form.steps
    length = runner.shapes.max_model_len
    params = SamplingParams(temperature=0.0, max_tokens=length - context.form.context, ignore_eos=True)
    top = runner.shapes.vocab_size - 1
    for row in range(rows):
        prompt = [1 + (7 * row + i) % top for i in range(context.form.context)]
        core.add_request(GenerateRequest(str(row), prompt, params))
    while core.num_waiting or core.in_flight.dispatched < 2:
        core.step()
    for _ in range(4):
        core.step()
    start, tokens = time.perf_counter(), 0
    for _ in range(steps):
        tokens += sum(output.num_tokens for output in core.step())
    seconds = time.perf_counter() - start
    core.abort_all()
    while core.has_work():
        core.step()
    return tokens, seconds


def _core(runner: JaxRunner, rows: int, *, drafts: bool) -> EngineCore:
    """Make an engine over a device that has forgotten everything. drafts: whether its steps draft."""
    runner.submit(Reset())
    shapes = runner.shapes
    info = ModelInfo(
        "random", shapes.max_model_len, shapes.vocab_size, rows, shapes.block_size, shapes.groups[0].num_blocks
    )
    core = EngineCore(
        runner,
        info,
        scheduler=SchedulerConfig(max_num_seqs=shapes.max_num_seqs),
        cache=CacheConfig(enable_prefix_caching=False),
        eos_ids=(),
    )
    policy = core.scheduler.drafts
    assert policy is not None
    number = policy.tokens if drafts else 0
    policy.drafts = lambda rows, prediction=None, constrained=False: number
    return core


def _off_from(batches: list[dict[str, Any]]) -> int | None:
    """Return the smallest batch that is slower with drafts; None if there is none."""
    return next((row["rows"] for row in batches if row["speedup"] < 1), None)
