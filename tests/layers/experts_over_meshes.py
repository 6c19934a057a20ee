"""Experts of a layer over meshes beside one device."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.layers import dispatch, exchange
from jaxinfer.layers.context import LayerContext
from jaxinfer.model_config.layer_kind import AttentionKind
from jaxinfer.model_config.mlp_kind import ExpertsKind, MlpKind, RouterKind
from jaxinfer.models.loaded import LoadedModel, random_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.parallel.rules import ShardingRules
from jaxinfer.runner.tuning import experts as chosen
from tests.model_config.uniform import uniform_decoder
from tests.models.paged import ODD_CHUNKS, PagedModel, run_paged
from tests.runner.tiny import tiny_shapes

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
ATTENTION = AttentionKind(num_heads=4, num_kv_heads=4, head_dim=16)
SIZES = {"vocab_size": 64, "hidden_size": 64, "max_position_embeddings": 256}


def made(mlp: MlpKind | ExpertsKind, scheme: Any, mesh: MeshConfig) -> LoadedModel:
    config = uniform_decoder(ATTENTION, mlp, (None,), **SIZES).quantised(scheme)
    return random_model(config, dtype=jnp.dtype("float32"), mesh=make_mesh(mesh), rules=mesh.rules)


def model(kind: str, scheme: str, mesh: MeshConfig = ONE_DEVICE) -> LoadedModel:
    return made(replace(KINDS[kind], bias=kind == "groups"), scheme, mesh)


def run(model: LoadedModel, x: jax.Array) -> np.ndarray:
    """Results of all rows but the last, which is padding."""

    def layer(weights: Any, x: jax.Array) -> jax.Array:
        decoder = model.build(weights)
        real, mlp = jnp.arange(len(x)) < len(x) - 1, cast(Any, decoder.blocks[0].mlp)
        vectors = decoder.vectors.of_layer(decoder.repeats, 0, 0)
        return mlp(x, LayerContext(vectors, jnp.arange(len(x)), model.dispatch(real)))[0]

    return np.asarray(jax.jit(layer)(model.weights, x))[:-1]


def check(kind: str, scheme: str, *meshes: str, forms: Sequence[Any] = ("reduce", "exchange")) -> None:
    given = {rows: jax.random.normal(jax.random.key(rows), (rows + 1, 64), jnp.float32) for rows in (1, 7)}
    alone = model(kind, scheme)
    want = {rows: run(alone, x) for rows, x in given.items()}
    for name in meshes or MESHES:
        split = model(kind, scheme, MESHES[name])
        for form in forms:
            for rows, x in given.items():
                got = run(replace(split, dispatch_form=form), x)
                np.testing.assert_allclose(got, want[rows], atol=1e-4, err_msg=f"{kind} {scheme} {name} {form} {rows}")


def check_schemes() -> None:
    for scheme in ("int8", "int4", "int8-w8a8", "fp8-w8a8"):
        check("shared", scheme, "ep4", "both", "whole")


def ragged_all_to_all(operand, output, starts, sizes, places, received, *, axis_name):
    """Exchange rows as JAX's documentation has it, one by one: XLA for a CPU lacks it."""
    operands, starts, sizes, places = jax.lax.all_gather((operand, starts, sizes, places), axis_name)
    me, number = jax.lax.axis_index(axis_name), jnp.arange(len(operand))
    for rows, start, size, place in zip(operands, starts, sizes, places, strict=True):
        to = jnp.where(number < size[me], place[me] + number, len(output))
        output = output.at[to].set(rows[jnp.minimum(start[me] + number, len(operand) - 1)], mode="drop")
    return jnp.where(jnp.any(received != sizes[:, me]), jnp.nan, output)


def check_ragged_exchange() -> None:
    jax.lax.ragged_all_to_all, exchange._padded = ragged_all_to_all, exchange._ragged
    check("shared", "none", "ep4", "both", "whole", forms=["exchange"])


def compare_dense_logits() -> None:
    for scheme in ("int8", "int8-w8a8", "fp8"):
        one, two = (
            run_paged(PagedModel(made(MlpKind(64), scheme, mesh)), np.arange(40) % 64, ODD_CHUNKS)
            for mesh in (ONE_DEVICE, MESHES["tp2"])
        )
        for left, right in zip(one, two, strict=True):
            np.testing.assert_allclose(left, right, atol=2e-4)


def choose_dispatch() -> None:
    split = model("shared", "none", MESHES["ep4"])
    shapes = tiny_shapes(split, max_num_seqs=4, max_num_batched_tokens=8)
    # A CPU's devices share their memory.
    assert chosen.choose_dispatch(split, shapes, None).dispatch_form == "reduce"
    chosen.platform_of = lambda mesh: "tpu"
    took = {"reduce": 2.0, "exchange": 1.0}
    chosen.time_experts = lambda model, *_: took[model.dispatch_form]
    assert chosen.choose_dispatch(split, shapes, None).dispatch_form == "exchange"
    assert chosen.choose_dispatch(model("shared", "none", MESHES["tp2"]), shapes, None).dispatch_form == "reduce"
    right = dispatch.exchanged
    dispatch.exchanged = lambda *arguments: 2 * right(*arguments)
    assert chosen.choose_dispatch(split, shapes, None).dispatch_form == "reduce"
