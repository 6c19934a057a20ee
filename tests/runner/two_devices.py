"""Attention, engines, experts and memory over two devices beside one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxinfer_kernels import RaggedRows

from jaxinfer.engine.types import GenerateRequest
from jaxinfer.layers.attention import Heads
from jaxinfer.model_config.layer_kind import Scoring
from jaxinfer.models.loaded import random_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.rules import ShardingRules
from jaxinfer.quantization.kv import KVCodes
from jaxinfer.runner.fit import memory
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.platform.autotune_cache import shapes_digest
from jaxinfer.runner.programs.key import program_key
from jaxinfer.runner.step.group_attention import group_attention
from jaxinfer.runner.tuning.attention_timing import time_attention
from tests.runner.tiny import drive, experts_model, greedy, make_core, tiny_model, tiny_shapes


def compare_attention() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.standard_normal((13, heads, 8), np.float32)) for heads in (4, 2, 2))
    numbers = ([[1, 4], [2, 0], [3, 5]], [20, 3, 0], [0, 1, 2], [1, 1, 11])
    rows = RaggedRows(*(jnp.asarray(x, jnp.int32) for x in numbers))

    def attended(mesh: Mesh | None, short_rows: int | np.int32, codes: KVCodes | None = None) -> tuple[np.ndarray, ...]:
        model = tiny_model((6, 6), mesh=mesh, codes=codes)
        scales = None if codes is None else jnp.array([1 / 8, 1 / 2])
        pages = jax.device_put(np.ones(model.kv_shape(0, 6, 16), model.kv_dtype(0)), model.kv_sharding(0, 6, 16))
        static = "short_rows" if isinstance(short_rows, int) else ()
        attention = jax.jit(group_attention(model, 0, Scoring(8**-0.5, sinks=True)), static_argnames=static)
        out, pages = attention(Heads(q, k, v, jnp.arange(4.0), scales), pages, 1, rows, short_rows=short_rows)
        assert pages.sharding.is_equivalent_to(model.kv_sharding(0, 6, 16), pages.ndim), pages.sharding
        return np.asarray(out), np.asarray(pages)

    two = make_mesh(MeshConfig({"tensor": 2}))
    cases: tuple[tuple[int | np.int32, KVCodes | None], ...] = ((np.int32(2), None), (0, None), (0, "int8"))
    for short_rows, codes in cases:
        for got, want in zip(attended(two, short_rows, codes), attended(None, short_rows, codes), strict=True):
            np.testing.assert_allclose(got, want, atol=1e-6)
    model = tiny_model(mesh=two)
    assert min(time_attention(model, tiny_shapes(model), 0)) > 0


def compare_engines() -> None:
    def answers(mesh: Mesh | None, codes: KVCodes | None = None) -> dict[tuple[str, int], list[int]]:
        model = tiny_model((None, 6), mesh=mesh, codes=codes)
        sizes: dict[str, Any] = {"max_num_seqs": 2, "max_num_batched_tokens": 16, "block_size": 16, "blocks": 12}
        runner = JaxRunner(model, tiny_shapes(model, **sizes))
        runner.warm_up(when="lazy")
        prompts = [list(range(20, 40)), list(range(20, 43)), [7, 8, 9]]
        requests = [GenerateRequest(str(i), prompt, greedy(5)) for i, prompt in enumerate(prompts)]
        return {key: output.tokens for key, output in drive(make_core(runner), requests).items()}

    for codes in (None, "int8"):
        two = answers(make_mesh(MeshConfig({"tensor": 2})), codes)
        assert len(two) == 3, two
        assert all(len(tokens) == 5 for tokens in two.values()), two
        assert two == answers(None, codes), two


def compare_experts() -> None:
    def answers(mesh: Mesh | None) -> tuple[dict[tuple[str, int], list[int]], list[list[int]]]:
        model = experts_model(mesh=mesh)
        runner = JaxRunner(model, tiny_shapes(model, max_num_seqs=2, max_num_batched_tokens=16))
        runner.warm_up(when="lazy")
        requests = [GenerateRequest(str(i), list(range(20, 23 + 9 * i)), greedy(5)) for i in range(2)]
        found = {key: output.tokens for key, output in drive(make_core(runner), requests).items()}
        load = runner.status().expert_load
        assert load is not None
        return found, load.experts.tolist()

    one = answers(None)
    for sizes in (MeshConfig({"tensor": 2}), MeshConfig({"expert": 2})):
        assert answers(make_mesh(sizes)) == one, sizes


def count_blocks() -> None:
    """KV that is split over both devices, and that lies on each."""
    mesh, whole = make_mesh(MeshConfig({"tensor": 2})), ShardingRules(kv_heads=())
    one, two = tiny_model(), tiny_model(mesh=mesh)
    other = random_model(one.config, dtype=one.dtype, mesh=mesh, rules=whole)
    shapes, limit = tiny_shapes(one, max_num_seqs=2, max_num_batched_tokens=32), 3 << 20
    blocks = [memory.device_blocks(model, shapes, limit=limit, cache=None)[0] for model in (one, two, other)]
    assert blocks[0] < 0.6 * blocks[1], blocks
    assert blocks[2] < 0.6 * blocks[1], blocks
    for model, count, parts in ((one, blocks[0], 1), (two, blocks[1], 2), (other, blocks[2], 1)):
        assert memory.block_costs(model, shapes) == [memory.block_costs(one, shapes)[0] // parts]
        runner = JaxRunner(model, memory.with_blocks(shapes, [count]))
        for device in model.mesh.devices.flat:
            arrays = (
                *model.weights,
                *model.head,
                *runner.stages[0].kv,
                *jax.tree.leaves((runner.stages[0].slots.state, runner.stages[0].slots.params)),
            )
            shards = (shard for array in arrays for shard in array.addressable_shards)
            here = sum(shard.data.nbytes for shard in shards if shard.device == device)
            left = limit - here - memory.step_temporaries(model, shapes)
            assert 0 <= left < limit // 64 + 20_000, left
        on_all = sum(shard.data.nbytes for array in runner.stages[0].kv for shard in array.addressable_shards)
        assert memory.block_costs(model, shapes)[0] * model.mesh.size * count == on_all
    for keys in ({program_key(model, shapes, {}) for model in (one, two, other)},
                 {shapes_digest(model, shapes) for model in (one, two, other)}):  # fmt: skip
        assert len(keys) == 3
