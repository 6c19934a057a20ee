"""Engines that draft against plain decoding, over a trained model: `python -m tests.drafts.draft_matrix MODEL`, with
`demo` or `stories260K`.

With XLA_FLAGS=--xla_force_host_platform_device_count=2. All values of two of who drafts, how many, batch, sampling
parameter, temperature, chunks, blocks, steps ahead, when drafts are left out, what interrupts, and devices meet. NaN is
wherever nobody may read. Every set of requests has prompts in chunks, prefixes in common, forks, seeds, a grammar and
log-probabilities.
"""

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.build import DEMO_FOLDER
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.models.eagle3_checkpoint import declared_eagle3, load_eagle3
from jaxinfer.models.loaded import LoadedModel, load_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.runner.step.draft_model import with_draft
from jaxinfer.sampling import SamplingParams
from jaxinfer.speculation import Method, Speculation
from tests.engine.outputs import Output, Outputs
from tests.engine.toy_grammar import Toy, ToyConstraints
from tests.material import material
from tests.quantization.checkpoints import config_of
from tests.runner.failing_programs import FailingPrograms
from tests.runner.mesh_matrix import compare
from tests.runner.pairwise import pairwise
from tests.runner.poisoning import PoisoningRunner
from tests.runner.tiny import drive, make_core, tiny_shapes

ASKED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "frequency": {"frequency_penalty": 0.7},
    "presence": {"presence_penalty": 0.5},
    "repetition": {"repetition_penalty": 1.3},
    "bias": {"logit_bias": {7: 4.0, 11: -50.0}},
    "min_tokens": {"min_tokens": 5, "ignore_eos": False},
    "stop ids": {"stop_token_ids": list(range(20, 28)), "ignore_eos": False},
}
TABLE: dict[str, Any] = {
    "drafter": ("ngram", "draft_model", "eagle3"),
    "drafts": (1, 2, 3, 5, 8),
    "rows": (1, 4, 32),
    "asked": tuple(ASKED),
    "temperature": (0.0, 0.7, 1.0),
    "chunk": (None, 5),
    "few_blocks": (False, True),
    "ahead": (0, 1, 3),
    "left_out": (0, 2),
    "interrupted": (None, "aborts", "stops", "faults"),
    "devices": (1, 2),
}
"""left_out: steps without drafts after every two that draft, of which the second has fewer. few_blocks: so that
rows are preempted."""
_LENGTH, _BLOCK, _TOKENS = 64, 4, 20
_PROMPT = 24


@cache
def model_of(name: str, devices: int) -> LoadedModel:
    folder = _folder(name)
    mesh = MeshConfig({"tensor": devices})
    config = config_of(folder).over(*mesh.parts)
    return load_model(folder, config, dtype=jnp.dtype("float32"), mesh=make_mesh(mesh), rules=mesh.rules)


def _folder(name: str) -> Path:
    return DEMO_FOLDER if name == "demo" else material("models", name)


@cache
def drafting_model(name: str, drafter: str | None, devices: int) -> LoadedModel:
    """The demo has a pair and a head of its own. Another model is drafted for by itself with noise on its weights,
    and in place of a head by itself."""
    target = model_of(name, devices)
    if drafter in (None, "ngram"):
        return target
    if name != "demo":
        return with_draft(target, _noisy(target) if drafter == "draft_model" else target)
    place = {"dtype": target.dtype, "mesh": target.mesh, "rules": target.rules}
    if drafter == "draft_model":
        folder = DEMO_FOLDER / "draft"
        config = config_of(folder).over(*MeshConfig({"tensor": devices}).parts)
        return with_draft(target, load_model(folder, config, **place))
    folder = DEMO_FOLDER / "eagle3"
    head = declared_eagle3(folder, target.config).over(*MeshConfig({"tensor": devices}).parts)
    return with_draft(target, load_eagle3(folder, head, **place))


def _noisy(target: LoadedModel) -> LoadedModel:
    rng = np.random.default_rng(0)

    def noisy(leaf: jax.Array) -> jax.Array:
        return leaf + (0.05 * jnp.std(leaf) * rng.standard_normal(leaf.shape)).astype(leaf.dtype)

    weights = tuple(map(noisy, target.weights))
    if target.config.tie_word_embeddings:
        (place,) = (number for number, one in enumerate(target.plan.weights) if one.path == ("embed",))
        head: tuple[jax.Array, ...] = (weights[place],)
    else:
        head = tuple(map(noisy, target.head))
    return replace(target, weights=weights, head=head)


def requests(asked: str, temperature: float, vocabulary: int, rows: int) -> Iterator[GenerateRequest]:
    """Thirty requests, of which half repeat themselves; two thirds report log-probabilities. rows: of the engine."""
    rng = np.random.default_rng(3)
    shared = rng.integers(3, vocabulary, 12).tolist()
    for number in range(30):
        own = rng.integers(3, vocabulary, 3 + number % 4).tolist()
        prompt = (own * 12)[: _PROMPT - number % 7] if number % 2 else [*shared[: 12 - number % 3], *own]
        changes = {"max_tokens": 5 + number % (_TOKENS - 4), "seed": number, "temperature": temperature}
        changes |= {"ignore_eos": True, "n": min(3, rows) if number % 10 == 4 else 1, **ASKED[asked]}
        changes |= {"logprobs": 5} if number % 3 else {}
        if number % 10 == 7:
            changes |= {"structured_outputs": Toy(5, 20, number == 7).constraint, "min_tokens": 0, "logit_bias": {}}
        yield GenerateRequest(str(number), prompt, SamplingParams(**changes))


def answers(name: str, how: Mapping[str, Any], *, plain: bool = False) -> tuple[Outputs, int, int]:
    """What an engine gives, and how many tokens were drafted and kept. plain: it drafts nothing, and nothing interrupts
    it."""
    drafter, drafts = (None, 0) if plain else (how["drafter"], how["drafts"])
    runner = _runner(name, drafter, drafts, how)
    programs = runner.stages[0].programs
    interrupted = None if plain else how["interrupted"]
    if interrupted == "faults":
        runner.stages[0].programs = FailingPrograms(programs, 1, "speculate", "draft")
    options = {"eos": (2,), "constraints": ToyConstraints(runner.stages[0].model.config.vocab_size), "clock": lambda: 0}
    core = make_core(runner, ahead=how["ahead"], long_prefill_token_threshold=how["chunk"], **options)
    runner.core = core
    if how["left_out"] and not plain:
        _draft_in_turns(core, how["left_out"])
    asked = list(requests(how["asked"], how["temperature"], runner.stages[0].model.config.vocab_size, how["rows"]))
    outputs = drive(core, asked, _BETWEEN.get(interrupted))
    runner.stages[0].programs = programs
    stats = core.stats()
    assert (stats.core.step_faults > 0) == (interrupted == "faults"), "faults"
    return outputs, stats.drafts.draft_tokens, stats.drafts.accepted_tokens


@cache
def _made(name: str, drafter: Method | None, drafts: int, rows: int, blocks: int, devices: int) -> PoisoningRunner:
    model = drafting_model(name, drafter, devices)
    drafting = Speculation(drafts, 1, 2, drafter) if drafter is not None else None
    if drafter == "eagle3" and name != "demo":
        drafting = Speculation(drafts, 1, 2, "draft_model")
    sizes = {"max_num_seqs": rows, "max_num_batched_tokens": max(rows, 16), "max_model_len": _LENGTH, "blocks": blocks}
    runner = PoisoningRunner(model, tiny_shapes(model, **sizes, block_size=_BLOCK, drafting=drafting))
    runner.warm_up(when="lazy")
    return runner


def _runner(name: str, drafter: Method | None, drafts: int, how: Mapping[str, Any]) -> Any:
    of_one = _LENGTH // _BLOCK + 1
    blocks = max(of_one * how["rows"] // 3, of_one) + 1 if how["few_blocks"] else of_one * (how["rows"] + 2) + 40
    return _made(name, drafter, drafts, how["rows"], blocks, how["devices"])


def _draft_in_turns(core: EngineCore, steps: int) -> None:
    policy: Any = core.scheduler.drafts
    asked = itertools.cycle([policy.tokens, (policy.tokens + 1) // 2, *[0] * steps])
    policy.drafts = lambda *_: next(asked)


def _abort_some(core: EngineCore, step: int) -> None:
    if step % 4 == 3:
        core.abort(str(step % 30))


def _stop_some(core: EngineCore, step: int) -> None:
    """As a stop string does, which is found later than its tokens."""
    if step % 3 == 2:
        core.stop(str(step % 30), 0)


_BETWEEN: dict[str | None, Callable[[EngineCore, int], None]] = {"aborts": _abort_some, "stops": _stop_some}


def check(found: Outputs, right: Outputs, interrupted: str | None) -> None:
    """Tokens are equal; of sequences that were interrupted, those that came."""
    right = {key: right[key] for key in found}
    if interrupted in _BETWEEN:
        right = {key: _cut(output, len(found[key].tokens)) for key, output in right.items()}
    compare(found, right, 1e-4)
    for key, output in right.items():
        assert len(found[key].tokens) == len(output.tokens), key


def _cut(output: Output, count: int) -> Output:
    return replace(output, tokens=output.tokens[:count], logprobs=output.logprobs[:count])


def main(name: str, first: str = "0", last: str = "1000") -> None:
    """Rows of the table from one to before another."""
    right, kept = cache(partial(_right, name)), 0
    for number, how in enumerate(pairwise(TABLE)):
        if int(first) <= number < int(last):
            found, drafted, accepted = answers(name, how)
            check(found, right(how["asked"], how["temperature"]), how["interrupted"])
            print(number, name, *how.values(), f"equal, {accepted} of {drafted} drafts kept", flush=True)
            kept += accepted
            if number % 3 == 2:  # memory mappings are few
                _made.cache_clear()
                jax.clear_caches()
    assert kept


def _right(name: str, asked: str, temperature: float) -> Outputs:
    plain = {"asked": asked, "temperature": temperature, "chunk": None, "few_blocks": False, "ahead": 1}
    return answers(name, {**plain, "rows": 4, "devices": 1, "left_out": 0, "interrupted": None}, plain=True)[0]


if __name__ == "__main__":
    main(*sys.argv[1:])
