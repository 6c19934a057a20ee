"""The sampler against an oracle in float64 that sorts."""

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.engine.kv.manager import BlockRefs
from jaxinfer.engine.scheduler.admission import packed_counts
from jaxinfer.engine.sequence import Sequence
from jaxinfer.engine.step.slot_init import MAX_COUNT, SEEN_IN_PROMPT
from jaxinfer.runner.sampler.adjust import adjust, count_drawn
from jaxinfer.runner.sampler.draw import inverse_cdf, weights_left
from jaxinfer.runner.sampler.thresholds import largest_threshold, ordered_bits
from jaxinfer.sampling import MAX_LOGIT_BIAS, MAX_LOGPROBS, SamplingParams
from tests.runner import oracle
from tests.runner.rows import VOCABULARY, Row, expected, random_row, run, run_just, slot_params
from tests.runner.rows import packed_counts as row_counts

ROWS = 32


@pytest.mark.smoke
@pytest.mark.parametrize("form", ["at once", "by rows"])
def test_draws_are_the_oracles(form: str) -> None:
    rng = np.random.default_rng(1)
    rows = [random_row(rng) for _ in range(20 * ROWS)]
    tokens = np.concatenate([run(rows[i : i + ROWS], form).tokens for i in range(0, len(rows), ROWS)])
    flips = 0
    for row, token in zip(rows, tokens.tolist(), strict=True):
        right, excused = expected(row)
        assert token in excused | {right}, row
        flips += token != right
    print(f"{flips} of {len(rows)} draws at a boundary")
    assert flips <= len(rows) // 100


def kept(logits, **asked) -> np.ndarray:
    """Probabilities that are left, [V] float64, of the device's sampler."""
    row = Row(np.asarray(logits, np.float32), SamplingParams(**asked))
    weights = np.asarray(jax.jit(weights_left)(row.logits[None], slot_params([row]).columns))[0]
    return weights.astype(np.float64) / weights.sum()


def test_probabilities_that_are_left_are_the_oracles() -> None:
    rng = np.random.default_rng(2)
    for _ in range(60):
        logits = (rng.normal(size=VOCABULARY) * 3).astype(np.float32)
        asked = {
            "temperature": float(rng.uniform(0.2, 3)),
            "min_p": float(rng.choice([0, 0.01, 0.2])),
            "top_k": int(rng.choice([0, 3, 50])),
            "top_p": float(rng.choice([0.3, 0.9, 1.0])),
            "top_n_sigma": float(rng.choice([0, 0.5, 1, 2.5])),
        }
        right = oracle.distribution(logits.astype(np.float64), **asked)
        np.testing.assert_allclose(kept(logits, **asked), right, rtol=2e-5, atol=1e-9)


# Hand-made: each order of two steps leaves another set. Logits are of probabilities 0.4, 0.3, 0.2, 0.1.
FOUR = np.log([0.4, 0.3, 0.2, 0.1])


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        # Temperature comes first: at 0.5 they are 0.53, 0.3, 0.13, 0.03.
        ({"temperature": 0.5, "min_p": 0.3}, [0, 1]),
        ({"temperature": 2.0, "min_p": 0.6}, [0, 1, 2]),
        ({"temperature": 0.5, "top_p": 0.8}, [0, 1]),
        ({"temperature": 2.0, "top_p": 0.65}, [0, 1, 2]),
        # min_p leaves 0.4, 0.3: their sum is 1 for top_p, and 0.57 is reached by the first alone.
        ({"min_p": 0.7, "top_p": 0.57}, [0]),
        # top_k leaves 0.4, 0.3, of which the first is 0.571; of all four two would be needed.
        ({"top_k": 2, "top_p": 0.55}, [0]),
        ({"top_k": 3, "top_p": 0.77}, [0, 1]),
        ({"top_p": 0.77}, [0, 1, 2]),
        ({"min_p": 1.0}, [0]),
        ({"top_p": 1e-6}, [0]),
        ({"top_k": 4}, [0, 1, 2, 3]),
        # Logits are -0.92, -1.20, -1.61, -2.30, of deviation 0.521.
        ({"top_n_sigma": 0.5}, [0]),
        ({"top_n_sigma": 1.0}, [0, 1]),
        ({"top_n_sigma": 2.0}, [0, 1, 2]),
        ({"top_n_sigma": 3.0}, [0, 1, 2, 3]),
        ({"top_n_sigma": -1.0}, [0, 1, 2, 3]),
        # Temperature does not matter to it; of the two that min_p leaves the deviation would be 0.144.
        ({"top_n_sigma": 1.0, "temperature": 0.25}, [0, 1]),
        ({"top_n_sigma": 1.0, "temperature": 4.0}, [0, 1]),
        ({"top_n_sigma": 1.5, "min_p": 0.7}, [0, 1]),
        # It leaves 0.4, 0.3, of which the first is 0.571; of all four two would be needed.
        ({"top_n_sigma": 1.0, "top_p": 0.55}, [0]),
    ],
)
def test_order_of_filters(asked, left) -> None:
    assert np.flatnonzero(kept(FOUR, **asked)).tolist() == left


def test_top_n_sigma_is_each_rows_own_and_counts_no_banned_token() -> None:
    banned = np.append(FOUR, -np.inf)
    asked = [{"top_n_sigma": 1.0}, {}, {"top_n_sigma": 2.0}, {"top_n_sigma": -1.0}]
    own = slot_params([Row(banned, SamplingParams(**one)) for one in asked]).columns
    weights = np.asarray(jax.jit(weights_left)(np.stack([banned] * 4).astype(np.float32), own))
    assert [np.flatnonzero(row).tolist() for row in weights] == [[0, 1], [0, 1, 2, 3], [0, 1, 2], [0, 1, 2, 3]]
    np.testing.assert_allclose(weights[0] / weights[0].sum(), [4 / 7, 3 / 7, 0, 0, 0], rtol=1e-6)


def test_order_of_adjustments() -> None:
    """Penalties see biased logits, and a banned id stays banned whatever its bias and its penalties."""
    logits = np.array([2.0, -1.0, 0.5, 3.0], np.float32)
    bias = {0: 10.0, 2: -1.5, 3: 100.0}
    params = SamplingParams(
        repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25, logit_bias=bias, min_tokens=9
    )
    row = Row(logits, params, prompt=[0, 1, 1, 3], output=[1, 2, 2], stop_ids=[3])
    counts = row_counts(row)[None]
    own = slot_params([row])
    generated = jnp.array([3])
    adjusted = adjust(jnp.asarray(logits)[None], jnp.asarray(counts), jnp.array([0]), own, generated)
    # 0: in the prompt. 1: in both, generated once. 2: generated twice, negative with its bias. 3: banned.
    by_hand = [(2 + 10) / 2, -1 * 2 - 0.5 - 0.25, (0.5 - 1.5) * 2 - 2 * 0.5 - 0.25, -np.inf]
    np.testing.assert_allclose(np.asarray(adjusted)[0], by_hand, rtol=1e-6)


def test_a_tiny_repetition_penalty_leaves_a_banned_token_banned() -> None:
    """1e-46 is 0 in float32, and 0 times minus infinity is no number."""
    params = SamplingParams(temperature=0.0, repetition_penalty=1e-46, min_tokens=1)
    row = Row(np.array([1.0, 3.0, 2.0]), params, prompt=[1], stop_ids=[1])
    assert run_just([row]).tokens.tolist() == [2]


def test_bias_of_all_entries_and_of_none() -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(size=VOCABULARY).astype(np.float32)
    bias = {int(t): float(b) for t, b in zip(rng.permutation(VOCABULARY), rng.uniform(-9, 9, MAX_LOGIT_BIAS))}  # noqa: B905
    rows = [
        Row(logits, SamplingParams(temperature=0.0, logit_bias=bias)),
        Row(logits, SamplingParams(temperature=0.0)),
        Row(logits, SamplingParams(temperature=0.0, logit_bias={VOCABULARY - 1: 100.0})),
        Row(logits, SamplingParams(temperature=0.0, logit_bias={0: 100.0})),
    ]
    assert run(rows).tokens.tolist() == [expected(row)[0] for row in rows]
    assert run(rows).tokens.tolist()[1:] == [int(logits.argmax()), VOCABULARY - 1, 0]


def test_min_tokens_bans_stops_until_there_are_enough() -> None:
    logits = np.zeros(40, np.float32)
    logits[[7, 9]] = [5, 4]
    params = SamplingParams(temperature=0.0, min_tokens=3)
    rows = [Row(logits, params, output=[1] * count, stop_ids=[7]) for count in range(5)]
    assert run(rows).tokens.tolist() == [9, 9, 9, 7, 7]


def test_greedy_and_top_k_of_one_take_the_lowest_of_the_most_likely() -> None:
    logits = np.zeros(VOCABULARY, np.float32)
    logits[[200, 700, 1299]] = 2.0
    rows = [
        Row(logits, SamplingParams(temperature=0.0)),
        *(Row(logits, SamplingParams(top_k=1, temperature=5.0, seed=seed)) for seed in range(10)),
        Row(logits, SamplingParams(temperature=0.0, logit_bias={200: -1.0})),
    ]
    assert run(rows).tokens.tolist() == [200] * 11 + [700]


def test_ties_at_a_threshold_stay() -> None:
    logits = np.array([3.0, 2.0, 2.0, 2.0, 1.0])
    assert np.flatnonzero(kept(logits, top_k=2)).tolist() == [0, 1, 2, 3]
    assert np.flatnonzero(kept(logits, top_p=0.6)).tolist() == [0, 1, 2, 3]
    rounded = np.asarray(jnp.asarray(np.random.default_rng(4).normal(size=VOCABULARY) * 3, jnp.bfloat16), np.float32)
    order = np.sort(rounded)[::-1]
    split = [k for k in range(2, 300) if order[k - 1] == order[k]]  # k whose cut would part equals
    for top_k in split[:5]:
        right = np.flatnonzero(rounded >= order[top_k - 1])
        assert len(right) > top_k
        assert np.flatnonzero(kept(rounded, top_k=top_k)).tolist() == right.tolist()


@pytest.mark.parametrize("kind", ["normal", "bits", "ties", "bfloat16", "negative"])
def test_thresholds_are_exact(kind) -> None:
    rng = np.random.default_rng(5)
    shape = (16, VOCABULARY)
    values = (rng.normal(size=shape) * 3).astype(np.float32)
    if kind == "bits":
        values = rng.integers(0, 2**32, shape, np.uint32).view(np.float32)
        values = np.where(np.isnan(values), np.float32(0), values)
    elif kind == "ties":
        values = rng.integers(-3, 4, shape).astype(np.float32)
    elif kind == "bfloat16":
        values = np.asarray(jnp.asarray(values, jnp.bfloat16), np.float32)
    elif kind == "negative":
        values = -np.abs(values) * 1e-30
    keys = np.asarray(ordered_bits(jnp.asarray(values)))
    order = np.sort(values, axis=1)[:, ::-1]
    top_k = rng.integers(1, VOCABULARY + 1, len(values)).astype(np.int32)
    found = np.asarray(jax.jit(partial(largest_threshold, weights=None))(keys, goal=top_k))
    limits = np.take_along_axis(order, top_k[:, None] - 1, axis=1)
    # +0 and -0 are equal as numbers and not as bits.
    np.testing.assert_array_equal((keys >= found[:, None]) | (values == limits), values >= limits)
    assert (
        np.asarray(ordered_bits(jnp.asarray(order[:, :-1]))) >= np.asarray(ordered_bits(jnp.asarray(order[:, 1:])))
    )[order[:, :-1] != order[:, 1:]].all()


def test_thresholds_of_weights_are_the_largest_that_reach_the_goal() -> None:
    rng = np.random.default_rng(6)
    values = (rng.integers(-40, 40, (16, VOCABULARY)) / 8).astype(np.float32)
    weights = rng.integers(1, 9, values.shape).astype(np.float32)  # sums of whole numbers are exact
    goal = (weights.sum(axis=1) * rng.uniform(0.01, 1, 16)).astype(np.float32)
    keys = ordered_bits(jnp.asarray(values))
    found = np.asarray(jax.jit(largest_threshold)(keys, jnp.asarray(weights), jnp.asarray(goal)))
    for row in range(len(values)):
        levels = np.unique(values[row])[::-1]
        level = next(v for v in levels if weights[row][values[row] >= v].sum() >= goal[row])
        np.testing.assert_array_equal(np.asarray(keys)[row] >= found[row], values[row] >= level)


def test_inverse_cdf_takes_the_oracles_index() -> None:
    rng = np.random.default_rng(7)
    weights = rng.exponential(size=(64, VOCABULARY)).astype(np.float32)
    weights[rng.random(weights.shape) < 0.9] = 0.0
    uniform = rng.random(64).astype(np.float32)
    uniform[:3] = [0.0, np.nextafter(np.float32(1), np.float32(0)), 0.5]
    found = np.asarray(jax.jit(inverse_cdf)(weights, uniform))
    for row, number, index in zip(weights.astype(np.float64), uniform.tolist(), found.tolist(), strict=True):
        assert row[index] > 0
        near = {oracle.inverse_cdf(row / row.sum(), number + side * 1e-5) for side in (-1, 0, 1)}
        assert index in near


def test_inverse_cdf_of_one_entry() -> None:
    for place in (0, 511, 512, 1299):
        weights = np.zeros((3, VOCABULARY), np.float32)
        weights[:, place] = 1e-30
        found = inverse_cdf(jnp.asarray(weights), jnp.array([0.0, 0.5, 0.99999994]))
        assert np.asarray(found).tolist() == [place] * 3


EXTREMES = [
    {"temperature": 1e-45},
    {"temperature": 1e-38},
    {"temperature": 1.2e-38},
    {"temperature": 1e-37},
    {"temperature": 1e-20},
    {"temperature": 100.0},
    {"top_p": 1e-45},
    {"top_p": 1e-30},
    {"top_p": 1 - 1e-7},
    {"min_p": 1e-45},
    {"min_p": 1.0},
    {"top_k": 2**31 - 1},
    {"repetition_penalty": 1e-45},
    {"repetition_penalty": 1e-38},
    {"repetition_penalty": 1.2e-38},
    {"repetition_penalty": 1e-30},
    {"repetition_penalty": 10.0},
    {"frequency_penalty": -2.0, "presence_penalty": -2.0},
    {"temperature": 1e-45, "top_p": 1e-45, "min_p": 1.0, "repetition_penalty": 1e-45},
]


@pytest.mark.parametrize("asked", EXTREMES, ids=str)
def test_extremes_that_are_allowed_draw_a_token_of_the_vocabulary(asked) -> None:
    rng = np.random.default_rng(8)
    rows = [
        Row((rng.normal(size=VOCABULARY) * 30).astype(np.float32), SamplingParams(seed=seed, **asked), [1, 2], [3, 3])
        for seed in range(8)
    ]
    tokens = run(rows).tokens
    assert ((tokens >= 0) & (tokens < VOCABULARY)).all()
    greedy = asked.get("temperature", 1) < 1e-3 or asked.get("top_p", 1) < 1e-3 or asked.get("min_p") == 1.0
    if greedy and "repetition_penalty" not in asked:  # (tiny ones make equals in float32 of what is not in float64)
        best = [
            np.argmax(oracle.adjusted(row.logits, row.params, row.prompt, row.output, row.stop_ids)) for row in rows
        ]
        assert tokens.tolist() == best


@pytest.mark.parametrize(
    "asked",
    [{}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1, "temperature": 1.7}],
    ids=["plain", "top_k", "top_p", "min_p"],
)
def test_draws_have_the_oracles_frequencies(asked) -> None:
    """Chi-square over 4,000 seeds; the bound is that of one chance in a million."""
    size, draws = 24, 4000
    rng = np.random.default_rng(9)
    logits = (rng.normal(size=size) * 1.5).astype(np.float32)
    rows = [Row(logits, SamplingParams(seed=seed, **asked)) for seed in range(draws)]
    found = np.bincount(run(rows).tokens, minlength=size)
    params = rows[0].params
    right = oracle.distribution(logits.astype(np.float64), params.temperature, params.min_p, params.top_k, params.top_p)
    assert not found[right == 0].any()
    seen = right > 0
    chi_square = (((found - draws * right) ** 2)[seen] / (draws * right[seen])).sum()
    freedom = seen.sum() - 1
    assert chi_square < freedom + 4.75 * np.sqrt(2 * freedom) + 15


def test_uniform_numbers_differ_by_seed_sequence_and_position_and_are_even() -> None:
    numbers = np.array([oracle.uniform(s, c, p) for s in range(12) for c in range(8) for p in range(10)])
    assert len(np.unique(numbers)) == len(numbers)
    ranks = (np.arange(len(numbers)) + 0.5) / len(numbers)
    assert np.abs(np.sort(numbers) - ranks).max() < 2.5 / np.sqrt(len(numbers))  # Kolmogorov and Smirnov
    assert oracle.uniform(1, 0, 5) != oracle.uniform(1 << 32, 0, 5)


def test_a_seeded_draw_does_not_depend_on_its_neighbours() -> None:
    rng = np.random.default_rng(10)
    rows = [random_row(rng) for _ in range(ROWS)]
    together = run(rows).tokens
    backwards = run(rows[::-1]).tokens[::-1]
    alone = [int(run_just([row]).tokens[0]) for row in rows[:6]]
    np.testing.assert_array_equal(together, backwards)
    assert together[:6].tolist() == alone


@pytest.mark.parametrize("size", [VOCABULARY, 17, 12])
def test_logprobs_ranks_and_top_twenty(size) -> None:
    """Of the raw distribution, whatever the parameters; for draws and for targets."""
    rng = np.random.default_rng(11)
    rows = []
    for i in range(8):
        logits = (rng.normal(size=size) * 3).astype(np.float32)
        params = SamplingParams(seed=i, temperature=0.5 * i, logprobs=5, logit_bias={3: 4.0})
        rows.append(Row(logits, params, target=-1 if i % 2 else int(rng.integers(size))))
    sampled = run(rows)
    for i, row in enumerate(rows):
        right = oracle.log_softmax(row.logits)
        token = row.target if row.target >= 0 else sampled.tokens[i]
        got = jax.tree.map(lambda x, i=i: x[i], sampled.logprobs)
        assert got.logprobs == pytest.approx(right[token], abs=1e-5)
        assert got.ranks == 1 + (right > right[token]).sum()
        count = min(MAX_LOGPROBS, size)
        best = np.argsort(-right, kind="stable")[:count]
        np.testing.assert_array_equal(got.top_ids[:count], best)
        np.testing.assert_allclose(got.top_logprobs[:count], right[best], atol=1e-5)
        assert np.isneginf(got.top_logprobs[count:]).all()


def test_top_logprobs_of_ties_go_by_id() -> None:
    logits = np.zeros(40, np.float32)
    logits[[30, 20]] = 1.0
    top = run([Row(logits, SamplingParams(logprobs=20, seed=1))]).logprobs.top_ids[0]
    assert top.tolist() == [20, 30, *range(18)]


def test_no_logprobs_are_made_where_nobody_asks() -> None:
    assert not run([Row(np.arange(40.0), SamplingParams(seed=1))]).logprobs.top_ids.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, "all -inf"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_give_no_token_and_spare_the_others(bad, temperature) -> None:
    rng = np.random.default_rng(12)
    rows = [
        Row((rng.normal(size=VOCABULARY) * 3).astype(np.float32), SamplingParams(seed=i, temperature=temperature))
        for i in range(6)
    ]
    right = run(rows).tokens
    if bad == "all -inf":
        rows[2].logits[:] = -np.inf
    else:
        rows[2].logits[[0, 1200]] = bad, 1.0
    broken = run(rows).tokens
    assert broken[2] == -1
    np.testing.assert_array_equal(np.delete(broken, 2), np.delete(right, 2))


def test_some_minus_infinite_logits_are_fine() -> None:
    logits = np.full(VOCABULARY, -np.inf, np.float32)
    logits[[5, 900]] = [0.0, 0.0]
    drawn = run([Row(logits, SamplingParams(seed=seed, top_k=3, top_p=0.99)) for seed in range(32)]).tokens
    assert set(drawn.tolist()) == {5, 900}


def test_counts_grow_to_their_bound_and_keep_the_prompt_bit() -> None:
    counts = jnp.zeros((4, 10), jnp.int16).at[0, 3].set(MAX_COUNT - 1).at[1, 3].set(SEEN_IN_PROMPT + MAX_COUNT - 1)
    for _ in range(3):
        counts = count_drawn(counts, jnp.array([0, 1, 2]), jnp.array([3, 3, 4]), jnp.array([1, 1, 0]))
    counts = np.asarray(counts)
    assert counts[0, 3] == MAX_COUNT
    assert counts[1, 3] == SEEN_IN_PROMPT + MAX_COUNT
    assert not counts[2].any()  # it keeps none


def test_counts_are_rebuilt_from_known_tokens() -> None:
    rng = np.random.default_rng(13)
    prompt, output = rng.integers(0, 30, 40).tolist(), [*rng.integers(0, 30, 50).tolist(), *[7] * (MAX_COUNT + 5)]
    params = SamplingParams(presence_penalty=1.0)
    sequence = Sequence("r", prompt, params, limit=10**6, seed=0, stop_ids=frozenset(), arrival=0, kv=BlockRefs(1))
    sequence.waiting_tokens = np.array([*prompt, *output], np.int32)  # as after a preemption
    ids, values = packed_counts(sequence)
    assert len(set(ids.tolist())) == len(ids)
    found = dict(zip(ids.tolist(), values.tolist(), strict=True))
    for token in range(30):
        count = min(Counter(output)[token], MAX_COUNT)
        assert found.get(token, 0) == count + (SEEN_IN_PROMPT if token in prompt else 0)
