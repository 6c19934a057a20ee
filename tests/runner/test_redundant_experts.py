"""Copies of experts over four devices: answers are one device's, wherever experts lie, and the load decides where."""

import pytest

from tests.runner.devices import run_on_devices

_PRELUDE = """
from dataclasses import replace
import jax, jax.numpy as jnp, numpy as np
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.models.loaded import random_model
from jaxinfer.model_config.layer_kind import AttentionKind
from jaxinfer.model_config.mlp_kind import ExpertsKind, MlpKind, RouterKind
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.parallel.rules import ShardingRules
from jaxinfer.runner.jax_runner import JaxRunner
from tests.model_config.uniform import uniform_decoder
from tests.runner.tiny import drive, greedy, make_core, tiny_shapes

WHOLE = ShardingRules(expert=("expert", "tensor"), expert_mlp=())
MESHES = {
    "expert": MeshConfig({"expert": 4}, redundant_experts=4),
    "both": MeshConfig({"expert": 2, "tensor": 2}, redundant_experts=2),
    "whole": MeshConfig({"data": 2, "tensor": 2}, WHOLE, redundant_experts=4),
}

def model_over(mesh, bias, scheme="none"):
    experts = ExpertsKind(8, 2, 32, RouterKind(normalise=True, bias=bias), shared=16)
    attention = AttentionKind(num_heads=4, num_kv_heads=4, head_dim=8)
    sizes = {"vocab_size": 300, "hidden_size": 32, "max_position_embeddings": 256}
    config = uniform_decoder(attention, MlpKind(32, experts=experts, bias=bias), (None, None), **sizes)
    config = config.quantised(scheme).over(*mesh.parts)
    return random_model(config, dtype=jnp.dtype("float32"), mesh=make_mesh(mesh), rules=mesh.rules)

def engine(mesh, bias, scheme="none", form="reduce", every=0):
    model = replace(model_over(mesh, bias, scheme), dispatch_form=form)
    shapes = tiny_shapes(model, max_num_seqs=4, max_num_batched_tokens=16, shards=mesh.data)
    runner = JaxRunner(model, shapes, expert_placement_steps=every)
    runner.warm_up()
    return make_core(runner)

def answers(core):
    requests = [GenerateRequest(str(i), [7, 8, 9] * (3 + i), greedy(9)) for i in range(3)]
    return {key: output.tokens for key, output in drive(core, requests).items()}
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("mesh", "scheme", "form"),
    [
        ("expert", "none", "reduce"),
        ("expert", "int8", "exchange"),
        ("both", "none", "exchange"),
        ("whole", "fp8", "reduce"),
    ],
)
def test_answers_are_those_of_one_device_while_experts_move(mesh: str, scheme: str, form: str) -> None:
    program = f"""
from jaxinfer.runner import expert_moves

expert_moves._WORTH = 1.0  # whatever helps
mesh, scheme, bias = MESHES[{mesh!r}], {scheme!r}, {scheme!r} != "int8"
alone, core = engine(ONE_DEVICE, bias, scheme), engine(mesh, bias, scheme, {form!r}, every=4)
want = answers(alone)
assert answers(core) == want
first = core.stats()
assert first.experts.placements, "nothing has moved"
assert first.experts.tokens == alone.stats().experts.tokens, "tokens of all copies are the expert's"
assert len(first.experts.device_imbalance) == 2
answers(alone), answers(core)
assert core.stats().experts.tokens == alone.stats().experts.tokens
assert not core.runner.compiles_after_ready
"""
    run_on_devices(_PRELUDE + program, 4)


@pytest.mark.long
def test_every_slot_has_the_weights_of_its_expert_after_many_moves() -> None:
    """Bit for bit."""
    program = """
from jaxinfer.models.plan import plan_model
from jaxinfer.runner.expert_load import ExpertLoad
from jaxinfer.runner.expert_moves import ExpertMoves
from jaxinfer.runner import expert_moves

expert_moves._ROOM = 20_000  # a few rows at a time
for mesh, scheme in (("expert", "none"), ("both", "int8"), ("whole", "fp8-w8a8")):
    model = model_over(MESHES[mesh], True, scheme)
    first = [np.array(array) for array in model.weights]  # where expert e is in slot e
    load = ExpertLoad(model)
    moves = ExpertMoves(model, load, 1)
    model = moves.warm_up(model)
    rng, counts = np.random.default_rng(0), np.zeros((2, 8 + MESHES[mesh].redundant_experts), np.uint32)
    for turn in range(3):
        order = rng.permutation(8)
        for layer, placement in enumerate(load.placements):
            tokens = np.round(8e4 / (1 + order) ** 2)
            share = tokens / np.bincount(placement, minlength=8)
            counts[layer] += share[placement].astype(np.uint32)
        load.dispatched = jnp.array(counts)  # a copy
        model = moves.after_step(model)
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
                    for row, layer in enumerate(one.layers):
                        placed = load.placements[layer]
                        got, want = (mine[row], whole[row][placed]) if leaf.stacked else (mine, whole[placed])
                        assert got.tobytes() == want.tobytes(), (mesh, one.path, layer)
                else:
                    assert mine.tobytes() == whole.tobytes()
                at += 1
    assert load.placed >= 2
"""
    run_on_devices(_PRELUDE + program, 4)


@pytest.mark.long
def test_a_device_fault_after_moves_leaves_experts_where_they_are() -> None:
    program = """
def table(model):
    (found,) = (np.asarray(array) for array in model.weights if array.dtype == jnp.int32)
    return found

core = engine(MESHES["expert"], True, every=4)
want, first = answers(core), table(model_over(MESHES["expert"], True))
placed = table(core.runner.model)
assert (placed != first).any()
core.runner.reset()
assert (table(core.runner.model) == placed).all()
assert answers(make_core(core.runner)) == want
"""
    run_on_devices(_PRELUDE + program, 4)


@pytest.mark.long
def test_moves_of_a_stack_take_the_room_of_one_layer() -> None:
    """As XLA plans them: what is gathered from other devices is a part of one layer, however many there are."""
    program = """
from jaxinfer.models.weight import Leaf
from jaxinfer.runner import expert_moves

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
"""
    run_on_devices(_PRELUDE + program, 4)
