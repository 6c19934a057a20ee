"""The sampler in float64 NumPy, one position at a time, by sorting: what the device's sampler is compared with."""

from collections import Counter
from collections.abc import Collection, Sequence
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.sampling import SamplingParams
from tests.engine.rules_model import kept
from tests.engine.toy_grammar import Toy

GREEDY_MARGIN = 1e-4
CDF_MARGIN = 1e-5


def adjusted(
    logits: np.ndarray, params: SamplingParams, prompt: Sequence[int], output: Sequence[int], stop_ids: Collection[int]
) -> np.ndarray:
    """Logit bias, min_tokens, penalties, toy grammars, allowed_token_ids and bad words: [V] -> [V] float64."""
    logits = np.array(logits, np.float64)
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    if len(output) < params.min_tokens:
        logits[list(stop_ids)] = -np.inf
    for token in {*prompt, *output}:
        if logits[token] > 0:
            logits[token] /= params.repetition_penalty
        else:
            logits[token] *= params.repetition_penalty
    for token, count in Counter(output).items():
        logits[token] -= params.frequency_penalty * count + params.presence_penalty
    toy = Toy.of(params)
    ids = range(len(logits)) if toy is None else toy.allowed(output, frozenset(stop_ids), len(logits))
    legal = kept(params, ids, output, stop_ids)
    return np.where(np.isin(np.arange(len(logits)), legal), logits, -np.inf)


def distribution(
    logits: np.ndarray,
    temperature: float,
    min_p: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    top_n_sigma: float = 0.0,
) -> np.ndarray:
    """Probabilities [V] after top_n_sigma, temperature, min_p, top_k and top_p. Equal logits stay or go together."""
    if top_n_sigma > 0:
        finite = logits[np.isfinite(logits)]
        logits = np.where(logits < finite.max() - top_n_sigma * finite.std(), -np.inf, logits)
    scaled = (logits - logits.max()) / temperature
    weights = np.exp(scaled)
    weights[weights < min_p] = 0.0
    if top_k:
        weights[weights < np.sort(weights)[::-1][min(top_k, len(weights)) - 1]] = 0.0
    if top_p < 1:
        ordered = np.sort(weights)[::-1]
        last = np.argmax(np.cumsum(ordered) >= top_p * ordered.sum())
        weights[weights < ordered[last]] = 0.0
    return weights / weights.sum()


def inverse_cdf(probabilities: np.ndarray, uniform: float) -> int:
    """The first index whose cumulative probability exceeds `uniform`."""
    possible = np.flatnonzero(probabilities)
    sums = np.cumsum(probabilities[possible])
    return int(possible[min(np.searchsorted(sums, uniform, side="right"), len(possible) - 1)])


@cache
def uniform(seed: int, index: int, position: int, purpose: int = 0) -> float:
    """The number that a draw at `position` uses, made alone."""
    words = jnp.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], jnp.uint32)
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    for part in (index, position, purpose):
        key = jax.random.fold_in(key, part)
    return float(jax.random.uniform(key))


def choose(logits: np.ndarray, params: SamplingParams, number: float) -> tuple[int, set[int]]:
    """The token that adjusted logits and a uniform number give, and all those that
    jaxinfer/design/tests.md, "The same tokens", excuses."""
    best = int(np.argmax(logits))
    if params.greedy:
        return best, set(np.flatnonzero(logits >= logits.max() - GREEDY_MARGIN).tolist())
    own = distribution(logits, params.temperature, params.min_p, params.top_k, params.top_p, params.top_n_sigma)
    excused = set()
    for shift in (-1e-6, 0.0, 1e-6):
        # A token on the very edge of top_p, min_p or top_n_sigma may stay or go.
        top_p = min(params.top_p + shift, 1.0) if params.top_p < 1 else 1.0
        min_p, sigmas = params.min_p * (1 + shift), params.top_n_sigma * (1 + shift)
        near = distribution(logits, params.temperature, min_p, params.top_k, top_p, sigmas)
        excused |= {inverse_cdf(near, number + side * CDF_MARGIN) for side in (-1, 0, 1)}
    return inverse_cdf(own, number), excused


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis, float64."""
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
