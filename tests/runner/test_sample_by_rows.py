"""A CPU draws one row after another, and only those that are used."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.runner.sampler import Sampled
from jaxinfer.runner.sampler.logprobs import no_logprobs
from jaxinfer.runner.step.forward import Scored
from jaxinfer.runner.step.sample import _in_parts
from tests.runner.rows import random_row, run_just

SCRATCH = 9


def test_a_draw_has_the_same_bits_whatever_rows_are_beside_it() -> None:
    rng = np.random.default_rng(5)
    rows = [random_row(rng) for _ in range(5)]
    together = run_just(rows, "by rows")
    alone = [run_just([row], "by rows") for row in rows]
    for found, *each in zip(jax.tree.leaves(together), *map(jax.tree.leaves, alone), strict=True):
        np.testing.assert_array_equal(found, np.concatenate(each))


def test_rows_without_a_slot_are_not_drawn() -> None:
    rng = np.random.default_rng(6)
    rows = [random_row(rng) for _ in range(5)]
    some, every = run_just(rows, "by rows", used=3), run_just(rows, "by rows")
    np.testing.assert_array_equal(some.tokens, [*every.tokens[:3], 0, 0])


def test_each_slot_that_is_used_is_drawn_once() -> None:
    drawn: list[int] = []

    def sampled_of(hidden: jax.Array, scored: Scored) -> Sampled:
        slots = np.asarray(scored.slots)
        np.testing.assert_array_equal(hidden.any(axis=1), slots != SCRATCH)
        drawn.extend(slots.tolist())
        return Sampled(scored.slots, no_logprobs(len(slots)))

    slots = jnp.array([2, 0, SCRATCH, 5, SCRATCH, SCRATCH, SCRATCH, 1, 7, *[SCRATCH] * 9], jnp.int32)
    rest = [jnp.zeros_like(slots)] * 3
    with jax.disable_jit():
        found = _in_parts(sampled_of, jnp.ones((len(slots), 4)), Scored(slots, *rest), SCRATCH)
    assert sorted(slot for slot in drawn if slot != SCRATCH) == [0, 1, 2, 5, 7]
    assert len(drawn) == 16
    np.testing.assert_array_equal(found.tokens[:16], slots[:16])
