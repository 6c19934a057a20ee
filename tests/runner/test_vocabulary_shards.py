"""The sampler over a vocabulary that several devices share, in a process of its own with eight CPUs."""

import pytest

from tests.runner.devices import run_on_devices

_PRELUDE = """
from functools import partial
import re
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxinfer.runner.sampler import sample_tokens
from jaxinfer.runner.sampler.adjust import count_drawn
from jaxinfer.runner.sampler.vocabulary import Vocabulary
from jaxinfer.sampling import SamplingParams
from tests.runner import rows as rows_module
from tests.runner.rows import Row, run_just
import tests.runner.test_sampler as one

one.VOCABULARY = 1304
SPLIT, WHOLE = P(None, ("tensor",)), P()

def mesh(devices):
    return Mesh(np.array(jax.devices()[:devices]), ("tensor",))

def split_sampler(devices):
    sampler = partial(sample_tokens, vocabulary=Vocabulary(("tensor",)))
    return jax.jit(jax.shard_map(
        sampler, mesh=mesh(devices), in_specs=(SPLIT, SPLIT, *[WHOLE] * 4), out_specs=WHOLE, check_vma=False
    ))

def run(devices, rows):
    rows_module._program = split_sampler(devices)
    return run_just(rows)
"""

_DRAWS = """
rng = np.random.default_rng(1)
rows = [one.random_row(rng) for _ in range(160)]
whole, flips = run_just(rows), 0
for devices in (2, 4, 8):
    split = run(devices, rows)
    for row, token in zip(rows, split.tokens.tolist(), strict=True):
        right, excused = one.expected(row)
        assert token in excused | {right}, (devices, token, right, row)
        flips += token != right
    np.testing.assert_array_equal(split.logprobs.top_ids, whole.logprobs.top_ids)
    np.testing.assert_allclose(split.logprobs.top_logprobs, whole.logprobs.top_logprobs, atol=1e-5)
    asked = np.array([row.params.logprobs is not None for row in rows]) & (split.tokens == whole.tokens)
    for name in ("logprobs", "ranks"):
        got, want = getattr(split.logprobs, name), getattr(whole.logprobs, name)
        np.testing.assert_allclose(got[asked], want[asked], atol=1e-5)
assert flips < 5, flips
"""

_EDGES = """
V = one.VOCABULARY
greedy = SamplingParams(temperature=0.0, max_tokens=None, logprobs=3)
def row(**at):
    logits = np.zeros(V, np.float32)
    for place, value in at.items():
        logits[int(place[1:])] = value
    return Row(logits, greedy)
nan, minus = float("nan"), float("-inf")
rows = [
    row(),                              # equal everywhere: the lowest id
    row(t700=3.0, t1200=3.0),           # equal in two shards
    row(t1303=5.0),                     # the last id
    row(t900=nan), row(t3=float("inf")),
    Row(np.full(V, minus, np.float32), greedy),
    Row(np.where(np.arange(V) == 1000, 0.0, minus).astype(np.float32), SamplingParams(max_tokens=None, seed=3)),
    Row(np.zeros(V, np.float32), SamplingParams(max_tokens=None, temperature=0.0, logit_bias={163: 1.0, 1303: 2.0})),
    Row(np.zeros(V, np.float32), SamplingParams(max_tokens=None, temperature=0.0, min_tokens=5), stop_ids=[0, 1, 163]),
]
for devices in (2, 4, 8):
    assert run(devices, rows).tokens.tolist() == [0, 700, 1303, -1, -1, -1, 1000, 1303, 2], devices
top = run(8, rows).logprobs.top_ids
assert top[1, :4].tolist() == [700, 1200, 0, 1] and top[0].tolist() == list(range(20)), top

counts = jnp.zeros((3, V), jnp.int16)
slots, tokens, uses = np.array([0, 1, 0], np.int32), np.array([5, 1303, 652], np.int32), np.array([1, 1, 0], np.int32)
count = jax.jit(jax.shard_map(
    partial(count_drawn, vocabulary=Vocabulary(("tensor",))), mesh=mesh(8), in_specs=(SPLIT, *[WHOLE] * 3),
    out_specs=SPLIT, check_vma=False,
))
np.testing.assert_array_equal(count(counts, slots, tokens, uses)[:2], count_drawn(counts, slots, tokens, uses)[:2])
"""

_EXCHANGED = """
S, V = 32, one.VOCABULARY
rows = [one.random_row(np.random.default_rng(1)) for _ in range(S)]
place = NamedSharding(mesh(8), SPLIT)
logits = jax.ShapeDtypeStruct((S, V), jnp.float32, sharding=place)
counts = jax.ShapeDtypeStruct((S + 1, V), jnp.int16, sharding=place)
ids = jax.ShapeDtypeStruct((S,), jnp.int32)
text = split_sampler(8).lower(logits, counts, ids, rows_module.slot_params(rows), ids, ids).compile().as_text()
found = re.findall(r"= (.*?) (all-\\w+|collective-permute|reduce-scatter)(?:-start)?\\(", text)
assert len(found) > 10, text
for shapes, kind in found:
    for dims in re.findall(r"\\[([\\d,]*)\\]", shapes):
        size = int(np.prod([int(n) for n in dims.split(",") if n] or [1]))
        assert size <= S * 8 * 20, (kind, shapes)
"""


_ENGINE = """
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.runner.jax_runner import JaxRunner
from tests.runner.tiny import drive, make_core, tiny_model, tiny_shapes

asked = [
    SamplingParams(temperature=0.0, max_tokens=12, repetition_penalty=1.3, presence_penalty=0.5, logprobs=5),
    SamplingParams(temperature=0.9, max_tokens=12, seed=3, top_p=0.9, frequency_penalty=0.4, logit_bias={7: 2.0}),
    SamplingParams(temperature=1.0, max_tokens=12, seed=4, top_k=12, n=2),
]

def answers(config, steps):
    model = tiny_model((None, 6), mesh=make_mesh(config))
    shapes = tiny_shapes(model, max_num_seqs=4, max_num_batched_tokens=16, block_size=16, blocks=24, decode_steps=steps)
    runner = JaxRunner(model, shapes)
    runner.warm_up(lazy=True)
    requests = [GenerateRequest(str(i), list(range(20, 30 + i)), params) for i, params in enumerate(asked)]
    out = {key: output.tokens for key, output in drive(make_core(runner), requests).items()}
    return out, runner._state.counts

for steps in (1, 4):
    two, counts = answers(MeshConfig({"tensor": 2}), steps)
    assert counts.sharding.shard_shape(counts.shape)[1] * 2 == counts.shape[1], counts.sharding
    one_device, whole = answers(ONE_DEVICE, steps)
    assert len(two) >= 3 and two == one_device, (two, one_device)
    np.testing.assert_array_equal(counts, whole)
"""


@pytest.mark.few(1)
def test_draws_are_the_oracles():
    run_on_devices(_PRELUDE + _DRAWS, 8)


@pytest.mark.long
def test_ties_ends_and_what_is_not_finite():
    run_on_devices(_PRELUDE + _EDGES, 8)


@pytest.mark.long
def test_devices_exchange_no_logits():
    run_on_devices(_PRELUDE + _EXCHANGED, 8)


@pytest.mark.long
def test_an_engine_gives_the_tokens_of_one_device():
    run_on_devices(_PRELUDE + _ENGINE, 2)
