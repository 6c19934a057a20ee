"""Masks on the device, against bits that NumPy unpacks; of whole vocabularies and of shards that begin within a
word."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxinfer.runner.sampler.masks import masked, set_masks
from jaxinfer.runner.sampler.vocabulary import Vocabulary
from tests.runner.devices import run_on_devices

SLOTS = 5


def random_masks(vocabulary: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """int32 [SLOTS, words] and bool [SLOTS, vocabulary]."""
    allowed = rng.random((SLOTS, vocabulary)) < 0.3
    bits = np.zeros((SLOTS, -(-vocabulary // 32) * 32), np.uint8)
    bits[:, :vocabulary] = allowed
    return np.packbits(bits, axis=1, bitorder="little").view(np.int32), allowed


def expected(logits: np.ndarray, allowed: np.ndarray, slots: np.ndarray, constrained: np.ndarray) -> np.ndarray:
    return np.where(allowed[slots] | (constrained == 0)[:, None], logits, -np.inf)


@pytest.mark.parametrize("vocabulary", [1, 31, 32, 61, 64, 97, 1300])
def test_constrained_rows_may_draw_what_their_bits_say(vocabulary: int) -> None:
    rng = np.random.default_rng(vocabulary)
    masks, allowed = random_masks(vocabulary, rng)
    logits, slots = rng.normal(size=(7, vocabulary)).astype(np.float32), rng.integers(0, SLOTS, 7)
    for constrained in (np.zeros(7), np.ones(7), rng.integers(0, 2, 7)):
        found = jax.jit(masked)(logits, masks, slots, constrained)
        np.testing.assert_array_equal(found, expected(logits, allowed, slots, constrained))


def test_columns_that_no_token_has_are_not_drawn() -> None:
    """A head may have more rows than the vocabulary has tokens."""
    masks, allowed = random_masks(61, np.random.default_rng(0))
    found = masked(jnp.zeros((1, 128)), jnp.asarray(masks), jnp.array([2]), jnp.array([1]))
    assert np.flatnonzero(np.isfinite(found)).tolist() == np.flatnonzero(allowed[2]).tolist()


def test_masks_are_written_to_their_slots() -> None:
    masks, _ = random_masks(61, np.random.default_rng(0))
    found = set_masks(jnp.asarray(masks), jnp.array([3, 0]), jnp.array([[1, 2], [3, 4]]))
    np.testing.assert_array_equal(found, [[3, 4], masks[1], masks[2], [1, 2], masks[4]])


def check_shards() -> None:
    for shards, width in ((8, 13), (8, 32), (2, 61), (4, 97), (8, 1)):
        vocabulary = shards * width
        rng = np.random.default_rng(vocabulary)
        masks, allowed = random_masks(vocabulary, rng)
        logits, slots = rng.normal(size=(7, vocabulary)).astype(np.float32), rng.integers(0, SLOTS, 7)
        constrained = rng.integers(0, 2, 7)
        mesh = Mesh(np.array(jax.devices()[:shards]), ("tensor",))
        own = partial(masked, vocabulary=Vocabulary(("tensor",)))
        split = jax.shard_map(own, mesh=mesh, in_specs=(P(None, "tensor"), P(), P(), P()), out_specs=P(None, "tensor"))
        found = jax.jit(split)(*map(jnp.asarray, (logits, masks, slots, constrained)))
        np.testing.assert_array_equal(found, expected(logits, allowed, slots, constrained))


@pytest.mark.long
def test_each_shard_reads_its_own_bits() -> None:
    run_on_devices(check_shards, 8)
