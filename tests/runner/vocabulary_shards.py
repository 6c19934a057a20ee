"""The sampler over a vocabulary that several devices share, beside one device and the oracle."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxinfer.engine.types import GenerateRequest
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.sampler import Sampled, sample_tokens
from jaxinfer.runner.sampler.adjust import count_drawn
from jaxinfer.runner.sampler.vocabulary import Vocabulary
from jaxinfer.sampling import SamplingParams
from tests.runner import rows as sampler_rows
from tests.runner.rows import Row, expected, random_row, run_just, slot_params
from tests.runner.tiny import drive, make_core, tiny_model, tiny_shapes

V = 1304
SPLIT, WHOLE = P(None, ("tensor",)), P()


def mesh(devices: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:devices]), ("tensor",))


def split_sampler(devices: int):
    sampler = partial(sample_tokens, vocabulary=Vocabulary(("tensor",)))
    places = (SPLIT, SPLIT, *[WHOLE] * 4)
    return jax.jit(jax.shard_map(sampler, mesh=mesh(devices), in_specs=places, out_specs=WHOLE, check_vma=False))


def run(devices: int, rows: Sequence[Row]) -> Sampled:
    sampler_rows._programs["split"] = split_sampler(devices)
    return run_just(rows, "split")


def compare_draws() -> None:
    rng = np.random.default_rng(1)
    rows = [random_row(rng, V) for _ in range(160)]
    whole, flips = run_just(rows), 0
    for devices in (2, 4, 8):
        split = run(devices, rows)
        for row, token in zip(rows, split.tokens.tolist(), strict=True):
            right, excused = expected(row)
            assert token in excused | {right}, (devices, token, right, row)
            flips += token != right
        np.testing.assert_array_equal(split.logprobs.top_ids, whole.logprobs.top_ids)
        np.testing.assert_allclose(split.logprobs.top_logprobs, whole.logprobs.top_logprobs, atol=1e-5)
        asked = np.array([row.params.logprobs is not None for row in rows]) & (split.tokens == whole.tokens)
        for name in ("logprobs", "ranks"):
            got, want = getattr(split.logprobs, name), getattr(whole.logprobs, name)
            np.testing.assert_allclose(got[asked], want[asked], atol=1e-5)
    assert flips < 5, flips


def check_edges() -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=None, logprobs=3)
    zeros, minus = np.zeros(V, np.float32), float("-inf")

    def row(values: dict[int, float]) -> Row:
        logits = zeros.copy()
        for place, value in values.items():
            logits[place] = value
        return Row(logits, greedy)

    rows = [
        row({}),  # equal everywhere: the lowest id
        row({700: 3.0, 1200: 3.0}),  # equal in two shards
        row({1303: 5.0}),  # the last id
        row({900: float("nan")}),
        row({3: float("inf")}),
        Row(np.full(V, minus, np.float32), greedy),
        Row(np.where(np.arange(V) == 1000, 0.0, minus).astype(np.float32), SamplingParams(max_tokens=None, seed=3)),
        Row(zeros, SamplingParams(max_tokens=None, temperature=0.0, logit_bias={163: 1.0, 1303: 2.0})),
        Row(zeros, SamplingParams(max_tokens=None, temperature=0.0, min_tokens=5), stop_ids=[0, 1, 163]),
    ]
    for devices in (2, 4, 8):
        assert run(devices, rows).tokens.tolist() == [0, 700, 1303, -1, -1, -1, 1000, 1303, 2], devices
    top = run(8, rows).logprobs.top_ids
    assert top[1, :4].tolist() == [700, 1200, 0, 1], top
    assert top[0].tolist() == list(range(20)), top

    counts = jnp.zeros((3, V), jnp.int16)
    slots, tokens, uses = (jnp.array(x, np.int32) for x in ([0, 1, 0], [5, 1303, 652], [1, 1, 0]))
    own = partial(count_drawn, vocabulary=Vocabulary(("tensor",)))
    places = (SPLIT, *[WHOLE] * 3)
    count = jax.jit(jax.shard_map(own, mesh=mesh(8), in_specs=places, out_specs=SPLIT, check_vma=False))
    np.testing.assert_array_equal(count(counts, slots, tokens, uses)[:2], count_drawn(counts, slots, tokens, uses)[:2])


def check_exchanges() -> None:
    size = 32
    rng = np.random.default_rng(1)
    rows = [random_row(rng, V) for _ in range(size)]
    place = NamedSharding(mesh(8), SPLIT)
    logits = jax.ShapeDtypeStruct((size, V), jnp.float32, sharding=place)
    counts = jax.ShapeDtypeStruct((size + 1, V), jnp.int16, sharding=place)
    ids = jax.ShapeDtypeStruct((size,), jnp.int32)
    text = split_sampler(8).lower(logits, counts, ids, slot_params(rows), ids, ids).compile().as_text()
    assert text is not None
    found = re.findall(r"= (.*?) (all-\w+|collective-permute|reduce-scatter)(?:-start)?\(", text)
    assert len(found) > 10, text
    for shapes, kind in found:
        for dims in re.findall(r"\[([\d,]*)\]", shapes):
            exchanged = int(np.prod([int(n) for n in dims.split(",") if n] or [1]))
            assert exchanged <= size * 8 * 20, (kind, shapes)


def compare_engines() -> None:
    asked = [
        SamplingParams(temperature=0.0, max_tokens=12, repetition_penalty=1.3, presence_penalty=0.5, logprobs=5),
        SamplingParams(temperature=0.9, max_tokens=12, seed=3, top_p=0.9, frequency_penalty=0.4, logit_bias={7: 2.0}),
        SamplingParams(temperature=1.0, max_tokens=12, seed=4, top_k=12, n=2),
    ]

    def answers(config: MeshConfig, steps: int) -> tuple[dict[tuple[str, int], list[int]], jax.Array]:
        model = tiny_model((None, 6), mesh=make_mesh(config))
        sizes: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "decode_steps": steps}
        runner = JaxRunner(model, tiny_shapes(model, block_size=16, blocks=24, **sizes))
        runner.warm_up(when="lazy")
        requests = [GenerateRequest(str(i), list(range(20, 30 + i)), params) for i, params in enumerate(asked)]
        out = {key: output.tokens for key, output in drive(make_core(runner), requests).items()}
        return out, runner.stages[0].slots.state.counts[: runner.shapes.scratch_slot]  # where padding counts, too

    for steps in (1, 4):
        two, counts = answers(MeshConfig({"tensor": 2}), steps)
        assert counts.sharding.shard_shape(counts.shape)[1] * 2 == counts.shape[1], counts.sharding
        one_device, whole = answers(ONE_DEVICE, steps)
        assert len(two) >= 3
        assert two == one_device, (two, one_device)
        np.testing.assert_array_equal(counts, whole)
