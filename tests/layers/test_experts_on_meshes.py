"""Experts of a layer over meshes, against one device, in a process of its own with four CPUs."""

import pytest

from tests.runner.devices import run_on_devices

_PRELUDE = """
from dataclasses import replace
import jax, jax.numpy as jnp, numpy as np
from jaxinfer.model_config.layer_kind import AttentionKind
from jaxinfer.model_config.mlp_kind import ExpertsKind, MlpKind, RouterKind
from jaxinfer.models.loaded import random_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.parallel.rules import ShardingRules
from tests.model_config.uniform import uniform_decoder

WHOLE = ShardingRules(expert=("expert", "tensor"), expert_mlp=())
MESHES = {
    "ep2": MeshConfig({"expert": 2}),
    "ep4": MeshConfig({"expert": 4}),
    "tp2": MeshConfig({"tensor": 2}),
    "both": MeshConfig({"expert": 2, "tensor": 2}),
    "whole": MeshConfig({"expert": 2, "tensor": 2}, WHOLE),
}
KINDS = {
    "shared": ExpertsKind(8, 2, 64, RouterKind(normalise=True), shared=64, shared_gate=True),
    "groups": ExpertsKind(8, 3, 64, RouterKind("sigmoid", choice_bias=True, groups=4, top_groups=2, normalise=True)),
}

def model(kind, scheme, mesh=ONE_DEVICE):
    attention = AttentionKind(num_heads=4, num_kv_heads=4, head_dim=16)
    mlp = MlpKind(64, experts=KINDS[kind], bias=kind == "groups")
    sizes = {"vocab_size": 64, "hidden_size": 64, "max_position_embeddings": 256}
    config = uniform_decoder(attention, mlp, (None,), **sizes).quantised(scheme)
    return random_model(config, dtype=jnp.dtype("float32"), mesh=make_mesh(mesh), rules=mesh.rules)

def run(model, x):
    '''Results of all rows but the last, which is padding.'''
    def layer(weights, x):
        decoder = model.build(weights)
        real = jnp.arange(len(x)) < len(x) - 1
        return decoder.blocks[0].mlp(x, decoder.vectors.of_layer(decoder.repeats, 0, 0), model.dispatch(real))[0]
    return np.asarray(jax.jit(layer)(model.weights, x))[:-1]

def check(kind, scheme, *meshes, forms=("reduce", "exchange")):
    given = {rows: jax.random.normal(jax.random.key(rows), (rows + 1, 64), jnp.float32) for rows in (1, 7)}
    alone = model(kind, scheme)
    want = {rows: run(alone, x) for rows, x in given.items()}
    for name in meshes or MESHES:
        split = model(kind, scheme, MESHES[name])
        for form in forms:
            for rows, x in given.items():
                got = run(replace(split, dispatch_form=form), x)
                np.testing.assert_allclose(got, want[rows], atol=1e-4, err_msg=f"{kind} {scheme} {name} {form} {rows}")
"""


@pytest.mark.long
def test_shared_experts_and_a_gate():
    run_on_devices(_PRELUDE + "check('shared', 'none')", 4)


@pytest.mark.long
def test_groups_of_experts_and_biases():
    run_on_devices(_PRELUDE + "check('groups', 'none')", 4)


@pytest.mark.long
def test_quantised_experts():
    """A row's scale of activations is that of all its channels, wherever they are."""
    program = """
for scheme in ("int8", "int4", "int8-w8a8", "fp8-w8a8"):
    check("shared", scheme, "ep4", "both", "whole")
"""
    run_on_devices(_PRELUDE + program, 4)


_EMULATED = """
from jaxinfer.layers import exchange

def ragged_all_to_all(operand, output, starts, sizes, places, received, *, axis_name):
    '''As JAX's documentation has it, row by row: XLA for a CPU lacks it.'''
    operands, starts, sizes, places = jax.lax.all_gather((operand, starts, sizes, places), axis_name)
    me, number = jax.lax.axis_index(axis_name), jnp.arange(len(operand))
    for rows, start, size, place in zip(operands, starts, sizes, places, strict=True):
        to = jnp.where(number < size[me], place[me] + number, len(output))
        output = output.at[to].set(rows[jnp.minimum(start[me] + number, len(operand) - 1)], mode="drop")
    return jnp.where(jnp.any(received != sizes[:, me]), jnp.nan, output)

jax.lax.ragged_all_to_all, exchange._padded = ragged_all_to_all, exchange._ragged
"""


@pytest.mark.long
def test_rows_sent_by_a_ragged_exchange():
    """As accelerators send them; what a device receives is what the others send it."""
    program = "check('shared', 'none', 'ep4', 'both', 'whole', forms=['exchange'])"
    run_on_devices(_PRELUDE + _EMULATED + program, 4)


@pytest.mark.long
def test_quantised_products_of_attention_and_mlps():
    """Logits of a dense model over two devices, whose output weights are split along K."""
    program = """
from tests.models.paged import ODD_CHUNKS, PagedModel, run_paged
mlp = MlpKind(64)
for scheme in ("int8", "int8-w8a8", "fp8"):
    config = uniform_decoder(AttentionKind(num_heads=4, num_kv_heads=4, head_dim=16), mlp, (None,), vocab_size=64,
                             hidden_size=64, max_position_embeddings=256).quantised(scheme)
    def logits(mesh):
        made = random_model(config, dtype=jnp.dtype("float32"), mesh=make_mesh(mesh), rules=mesh.rules)
        return run_paged(PagedModel(made), np.arange(40) % 64, ODD_CHUNKS)
    for one, two in zip(logits(ONE_DEVICE), logits(MESHES["tp2"]), strict=True):
        np.testing.assert_allclose(one, two, atol=2e-4)
"""
    run_on_devices(_PRELUDE + program, 2)


@pytest.mark.long
def test_the_form_of_dispatch_is_the_fastest_that_agrees():
    """As on an accelerator: the first form is timed slower, then the second one is wrong."""
    program = """
import jaxinfer.runner.experts as chosen
import jaxinfer.layers.dispatch as dispatch
from tests.runner.tiny import tiny_shapes

split = model("shared", "none", MESHES["ep4"])
shapes = tiny_shapes(split, max_num_seqs=4, max_num_batched_tokens=8)
assert chosen.choose_dispatch(split, shapes, None).dispatch_form == "reduce"  # a CPU's devices share their memory
chosen.platform_of = lambda mesh: "tpu"
took = {"reduce": 2.0, "exchange": 1.0}
chosen.time_experts = lambda model, *_: took[model.dispatch_form]
assert chosen.choose_dispatch(split, shapes, None).dispatch_form == "exchange"
assert chosen.choose_dispatch(model("shared", "none", MESHES["tp2"]), shapes, None).dispatch_form == "reduce"
right = dispatch.exchanged
dispatch.exchanged = lambda *arguments: 2 * right(*arguments)
assert chosen.choose_dispatch(split, shapes, None).dispatch_form == "reduce"
"""
    run_on_devices(_PRELUDE + program, 4)
