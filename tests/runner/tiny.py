"""Small random models, an engine driven over them, and a judge that knows neither blocks nor steps."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.engine.types import GenerateRequest, TokenLogprobs
from jaxinfer.layers.stack import Layout
from jaxinfer.model_config.layer_kind import AttentionKind, NormKind
from jaxinfer.model_config.mlp_kind import ExpertsKind, MlpKind, RouterKind
from jaxinfer.models.loaded import LoadedModel, random_model
from jaxinfer.quantization.kv import KVCodes
from jaxinfer.runner.fit.kv_measure import needs_measuring, with_measured_scales
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.programs.compiled import Programs
from jaxinfer.runner.programs.store import ProgramStore
from jaxinfer.runner.programs.table import Name
from jaxinfer.runner.step.stage import StagedModel
from jaxinfer.sampling import SamplingParams
from tests.engine.outputs import Output, Outputs
from tests.engine.small import small_core
from tests.engine.stepping import step_deltas
from tests.model_config.uniform import uniform_decoder
from tests.models.dense import dense_attention
from tests.runner import oracle

VOCABULARY = 300


def tiny_model(
    windows: tuple[int | None, ...] = (None, None),
    seed: int = 0,
    mesh: Mesh | None = None,
    codes: KVCodes | None = None,
) -> LoadedModel:
    """Two layers of width 32; logits with a standard deviation of about 3. codes: what keys and values are kept in."""
    config = uniform_decoder(
        AttentionKind(num_heads=4, num_kv_heads=2, head_dim=8, qk_norm=NormKind()),
        MlpKind(64),
        windows,
        vocab_size=VOCABULARY,
        hidden_size=32,
        max_position_embeddings=256,
    )
    model = random_model(config.keeping(codes), dtype=jnp.dtype("float32"), seed=seed, mesh=mesh)
    return with_measured_scales(model, range(VOCABULARY)) if needs_measuring(model) else model


def experts_model(layout: Layout = "unrolled", mesh: Mesh | None = None) -> LoadedModel:
    """Two layers of width 32, each with eight experts of which two are chosen."""
    config = uniform_decoder(
        AttentionKind(num_heads=4, num_kv_heads=2, head_dim=8),
        ExpertsKind(8, 2, 16, RouterKind(normalise=True), shared=16),
        (None, None),
        vocab_size=VOCABULARY,
        hidden_size=32,
        max_position_embeddings=256,
    )
    return random_model(config, dtype=jnp.dtype("float32"), layout=layout, mesh=mesh)


def near_model(target: LoadedModel) -> LoadedModel:
    """One to draft for a tiny model, whose likeliest tokens are often, not always, the same. It has no windows."""
    rng, draft = np.random.default_rng(0), tiny_model()

    def near(leaf: jax.Array) -> jax.Array:
        return leaf + (0.05 * jnp.std(leaf) * rng.standard_normal(leaf.shape)).astype(leaf.dtype)

    return replace(draft, weights=tuple(map(near, target.weights)), head=tuple(map(near, target.head)))


def tiny_shapes(model: LoadedModel | StagedModel, **changes: Any) -> EngineShapes:
    """Few buckets, as on a CPU: budget 64, blocks of 4. `few_sizes=False`: all buckets."""
    sizes: dict[str, Any] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_scored": changes.get("max_num_seqs", 8),
        "max_model_len": 96,
        "block_size": 4,
        "vocab_size": model.config.vocab_size,
        "few_sizes": True,
        **changes,
    }
    blocks = sizes.pop("blocks", 400)
    groups = tuple(KVGroup(group.window, blocks) for group in model.config.kv_groups)
    return EngineShapes(groups=groups, **sizes)


def with_blocks(monkeypatch: pytest.MonkeyPatch, device: JaxRunner, blocks: int) -> JaxRunner:
    """The same device and programs; an engine is given so many blocks of each group, fewer than there are."""
    groups = tuple(group._replace(num_blocks=blocks) for group in device.shapes.groups)
    monkeypatch.setattr(device, "shapes", replace(device.shapes, groups=groups))
    return device


def make_core(runner: Any, *, ahead: int = 1, **options: Any) -> EngineCore:
    """An engine over a runner whose steps have all been collected; slot state and blocks of others do not matter."""
    return small_core(runner, ahead=ahead, **options)


def drive(
    core: EngineCore, requests: Sequence[GenerateRequest], between: Callable[[EngineCore, int], None] | None = None
) -> Outputs:
    """Adds all requests and steps until nothing is left. between: called before each step with its number."""
    outputs: Outputs = {}
    for request in requests:
        core.add_request(request)
        outputs |= {(request.request_id, index): Output() for index in range(request.sampling.n)}
    for number in range(5000):
        if not core.has_work():
            break
        if between is not None:
            between(core, number)
        for delta in step_deltas(core):
            outputs[delta.request_id, delta.index].take(delta)
    assert not core.has_work(), "the engine hangs"
    assert all(output.reason is not None for output in outputs.values())
    assert all(pool.num_in_use == 0 for pool in core.scheduler.state.kv.pools)
    return outputs


class Judge:
    """Dense attention over a whole sequence at once, and the sampler's oracle: says which tokens are right."""

    def __init__(self, model: LoadedModel, length: int = 96):
        self.model = model
        self.length = length
        self._forward = jax.jit(partial(_dense_logits, model))

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """[len(tokens), V]."""
        padded = np.zeros(self.length, np.int32)
        padded[: len(tokens)] = tokens
        return np.asarray(self._forward(self.model.weights, self.model.head, padded))[: len(tokens)]

    def flips(self, request: GenerateRequest, index: int, output: Output, stop_ids: Sequence[int] = ()) -> list[int]:
        """Positions of tokens that are wrong, but excused as near ties. Fails on a token that is not.

        Each token is judged after those that really came before it.
        """
        prompt, params, tokens = list(request.prompt_token_ids), request.sampling, output.tokens
        logits = self.logits(prompt + tokens)[len(prompt) - 1 :]
        flips = []
        for i, token in enumerate(tokens):
            own = oracle.adjusted(logits[i], params, prompt, tokens[:i], stop_ids)
            number = 0.0 if params.greedy else oracle.uniform(params.seed or 0, index, len(prompt) + i)
            right, excused = oracle.choose(own, params, number)
            if token != right:
                assert token in excused, f"{request.request_id}[{index}] at {i}: {token} instead of {right}"
                flips.append(i)
        return flips


def check_all(
    judge: Judge, requests: Sequence[GenerateRequest], outputs: Outputs, stop_ids: Sequence[int] = ()
) -> None:
    """Judges every sequence; prints how many near ties fell the other way."""
    by_id = {request.request_id: request for request in requests}
    flips = {key: judge.flips(by_id[key[0]], key[1], output, stop_ids) for key, output in outputs.items()}
    count = sum(map(len, flips.values()))
    if count:
        print(f"{count} of {sum(len(o.tokens) for o in outputs.values())} tokens diverge at near ties")


def _dense_logits(model: LoadedModel, weights: Any, head: Any, tokens: jax.Array) -> jax.Array:
    decoder = model.build(weights)
    hidden, _ = decoder(tokens, jnp.arange(len(tokens)), (), dense_attention(model.config))
    return model.logits(head, decoder.final_norm(hidden))


def random_prompt(rng: np.random.Generator, length: int) -> list[int]:
    return rng.integers(0, VOCABULARY, length).tolist()


def greedy(count: int, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": count, **changes})


def seeded(count: int, seed: int, **changes: Any) -> SamplingParams:
    """Sampling with everything that depends on what was generated before."""
    penalties = {"presence_penalty": 0.3, "frequency_penalty": 0.2, "repetition_penalty": 1.1}
    return SamplingParams(
        **{"temperature": 0.8, "top_p": 0.9, "max_tokens": count, "seed": seed, **penalties, **changes}
    )


def tiny_runner(windows: tuple[int | None, ...] = (None, None), **changes: Any) -> JaxRunner:
    """A runner that compiles what is asked for when it is asked for."""
    model = tiny_model(windows)
    runner = JaxRunner(model, tiny_shapes(model, **changes))
    runner.warm_up(when="lazy")
    return runner


class _ProgramsOf(ProgramStore):
    """A store that holds the programs of a stage of another runner, but for some."""

    def __init__(self, programs: Programs, but: Collection[Name]):
        self._programs, self._but, self.writable = programs, but, False

    def load(self, name: Name) -> Any:
        return None if name in self._but else self._programs[name]


def twin(runner: JaxRunner, model: LoadedModel | None = None, *, anew: Collection[Name] = ()) -> JaxRunner:
    """A runner with arrays of its own and the programs of another, but for those that are traced `anew`. model: one
    that differs in values only."""
    parts = (model,) if model is not None else tuple(stage.model for stage in runner.stages)
    stores = [_ProgramsOf(stage.programs, anew) for stage in runner.stages]
    made = JaxRunner(StagedModel(parts), runner.shapes, stores=stores)
    made.warm_up(when="lazy")
    return made


def check_logprobs(judge: Judge, request: GenerateRequest, output: Output) -> None:
    """Log-probabilities of output and prompt against a float64 log-softmax of dense logits, within 1e-4."""
    prompt = list(request.prompt_token_ids)
    right = oracle.log_softmax(judge.logits(prompt + output.tokens))
    if request.sampling.logprobs is not None:
        assert len(output.logprobs) == len(output.tokens)
        for i, (entry, token) in enumerate(zip(output.logprobs, output.tokens, strict=True)):
            _check_entry(entry, token, right[len(prompt) - 1 + i], request.sampling.logprobs)
    if request.sampling.prompt_logprobs is not None:
        assert output.prompt_logprobs is not None
        first, *rest = output.prompt_logprobs
        assert first is None
        for entry, token, row in zip(rest, prompt[1:], right[: len(prompt) - 1], strict=True):
            assert entry is not None
            _check_entry(entry, token, row, request.sampling.prompt_logprobs)


def _check_entry(entry: TokenLogprobs, token: int, right: np.ndarray, asked: int) -> None:
    assert entry.token_id == token
    np.testing.assert_allclose(entry.logprob, right[token], atol=1e-4)
    # Between log-probabilities this close either rank is right.
    assert (right > right[token] + 1e-4).sum() < entry.rank <= 1 + (right > right[token] - 1e-4).sum()
    assert len(entry.top) == asked
    assert [value for _, value in entry.top] == sorted((value for _, value in entry.top), reverse=True)
    np.testing.assert_allclose([value for _, value in entry.top], np.sort(right)[::-1][:asked], atol=1e-4)
    np.testing.assert_allclose([value for _, value in entry.top], right[[token for token, _ in entry.top]], atol=1e-4)
