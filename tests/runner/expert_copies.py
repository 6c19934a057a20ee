"""Copies of experts over four devices, which move by the load, beside one device."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.engine.device.calls import Reset
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.model_config.layer_kind import AttentionKind
from jaxinfer.model_config.mlp_kind import ExpertsKind, RouterKind
from jaxinfer.models.loaded import LoadedModel, random_model
from jaxinfer.models.plan import plan_model
from jaxinfer.models.weight import Leaf
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.parallel.rules import ShardingRules
from jaxinfer.runner.experts import moves as expert_moves
from jaxinfer.runner.experts.load import ExpertLoad
from jaxinfer.runner.experts.moves import ExpertMoves
from jaxinfer.runner.jax_runner import JaxRunner
from tests.model_config.uniform import uniform_decoder
from tests.runner.tiny import drive, greedy, make_core, tiny_shapes

WHOLE = ShardingRules(expert=("expert", "tensor"), expert_mlp=())
MESHES = {
    "expert": MeshConfig({"expert": 4}, redundant_experts=4),
    "both": MeshConfig({"expert": 2, "tensor": 2}, redundant_experts=2),
    "whole": MeshConfig({"data": 2, "tensor": 2}, WHOLE, redundant_experts=4),
}


def model_over(mesh: MeshConfig, bias: bool, scheme: Any = "none") -> LoadedModel:
    experts = ExpertsKind(8, 2, 32, RouterKind(normalise=True, bias=bias), shared=16, bias=bias)
    attention = AttentionKind(num_heads=4, num_kv_heads=4, head_dim=8)
    sizes = {"vocab_size": 300, "hidden_size": 32, "max_position_embeddings": 256}
    config = uniform_decoder(attention, experts, (None, None), **sizes)
    config = config.quantised(scheme).over(*mesh.parts)
    return random_model(config, dtype=jnp.dtype("float32"), mesh=make_mesh(mesh), rules=mesh.rules)


def engine(mesh: MeshConfig, bias: bool, scheme: str = "none", form: Any = "reduce", every: int = 0) -> Any:
    model = replace(model_over(mesh, bias, scheme), dispatch_form=form)
    # With few sizes warm-up times rows, which `every` counts as steps.
    shapes = tiny_shapes(model, max_num_seqs=4, max_num_batched_tokens=16, shards=mesh.data, few_sizes=False)
    runner = JaxRunner(model, shapes, expert_placement_steps=every)
    runner.warm_up()
    return make_core(runner)


def answers(core: Any) -> dict[tuple[str, int], list[int]]:
    requests = [GenerateRequest(str(i), [7, 8, 9] * (3 + i), greedy(9)) for i in range(3)]
    return {key: output.tokens for key, output in drive(core, requests).items()}


def compare_answers(mesh: str, scheme: str, form: str) -> None:
    expert_moves._WORTH = 1.0  # whatever helps
    bias = scheme != "int8"
    alone, core = engine(ONE_DEVICE, bias, scheme), engine(MESHES[mesh], bias, scheme, form, every=4)
    want = answers(alone)
    assert answers(core) == want
    first = core.stats()
    assert first.experts.placements, "nothing has moved"
    assert first.experts.tokens == alone.stats().experts.tokens, "tokens of all copies are the expert's"
    assert len(first.experts.device_imbalance) == 2
    answers(alone)
    answers(core)
    assert core.stats().experts.tokens == alone.stats().experts.tokens
    assert not core.runner.status().compiles_after_ready


def compare_moved_weights() -> None:
    expert_moves._ROOM = 20_000  # a few rows at a time
    for mesh, scheme in (("expert", "none"), ("both", "int8"), ("whole", "fp8-w8a8")):
        model = model_over(MESHES[mesh], True, scheme)
        first = [np.array(array) for array in model.weights]  # where expert e is in slot e
        load = ExpertLoad(model)
        moves = ExpertMoves(model, load, 1)
        model = moves.warm_up(model)
        rng, counts = np.random.default_rng(0), np.zeros((2, 8 + MESHES[mesh].redundant_experts), np.uint32)
        for _ in range(3):
            order = rng.permutation(8)
            for layer, placement in enumerate(load.placements):
                tokens = np.round(8e4 / (1 + order) ** 2)
                share = tokens / np.bincount(placement, minlength=8)
                counts[layer] += share[placement].astype(np.uint32)
            load.dispatched = jnp.array(counts)  # a copy
            model = moves.after_step(model)
            check_slots(model, first, load, mesh)
        assert load.placed >= 2


def check_slots(model: LoadedModel, first: list[np.ndarray], load: ExpertLoad, mesh: str) -> None:
    """Compare each slot, bit for bit, with its expert before any move."""
    at = 0
    for one in plan_model(model.config, model.dtype).weights:
        for leaf in one.leaves("bytes"):
            mine, whole = np.asarray(model.weights[at]), first[at]
            if one.holds_slots:
                for layer, placement in enumerate(load.placements):
                    for expert in range(8):
                        held = [slot for slot in mine[layer, expert].tolist() if slot >= 0]
                        assert held == np.flatnonzero(placement == expert).tolist()
            elif "expert" in leaf.axes:
                assert one.layers is not None
                for row, layer in enumerate(one.layers):
                    placed = load.placements[layer]
                    got, want = (mine[row], whole[row][placed]) if leaf.stacked else (mine, whole[placed])
                    assert got.tobytes() == want.tobytes(), (mesh, one.path, layer)
            else:
                assert mine.tobytes() == whole.tobytes()
            at += 1


def table(model: LoadedModel) -> np.ndarray:
    (found,) = (np.asarray(array) for array in model.weights if array.dtype == jnp.int32)
    return found


def reset_after_moves() -> None:
    core = engine(MESHES["expert"], True, every=4)
    want, first = answers(core), table(model_over(MESHES["expert"], True))
    placed = table(core.runner.stages[0].model)
    assert (placed != first).any()
    core.runner.submit(Reset())
    assert (table(core.runner.stages[0].model) == placed).all()
    assert answers(make_core(core.runner)) == want


def measure_moves_of_a_stack() -> None:
    expert_moves._ROOM = 1 << 16
    model, taken = model_over(MESHES["expert"], False), {}
    for layers in (1, 12):
        leaf = Leaf((layers, 12, 4, 4096), jnp.dtype("float32"), ("layers", "expert", None, "embed"))
        place = model.rules.sharding(model.mesh, leaf.axes, leaf.shape)
        array = jax.device_put(np.arange(layers * 12 * 4 * 4096, dtype=np.float32).reshape(leaf.shape), place)
        sources = np.stack([np.random.default_rng(i).permutation(12) for i in range(layers)]).astype(np.int32)
        move = expert_moves._mover(model, leaf, array.format)
        expected = np.stack([one[of] for one, of in zip(np.asarray(array), sources, strict=True)])
        taken[layers] = move.lower(array, sources).compile().memory_analysis().temp_size_in_bytes
        np.testing.assert_array_equal(move(array, sources), expected)
    assert taken[12] < 1.5 * taken[1] + (1 << 16), taken
