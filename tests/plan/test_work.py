"""What a device does in a step, against the engine's own counts, sums over single tokens, and arrays on devices."""

import numpy as np
import pytest

from jaxinfer.engine.stats.step_cost import StepCostTotals
from jaxinfer.engine.step.plan import StepKind, StepPlan
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import random_model
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.parallel.rules import ShardingRules
from jaxinfer.plan.exchange import Exchange
from jaxinfer.plan.work import ShardRows, StepPart, device_model, step_of
from jaxinfer.runner.fit.costs import step_costs
from tests.engine.small import small_shapes
from tests.runner import mesh_matrix
from tests.runner.devices import run_on_devices

MODELS = {name: mesh_matrix.MODELS[name] for name in ("two KV heads", "windowed", "experts")}
MESHES = {
    "one": ONE_DEVICE,
    "tp2": MeshConfig({"tensor": 2}),
    "tp8": MeshConfig({"tensor": 8}),
    "data2-tp2": MeshConfig({"data": 2, "tensor": 2}),
    "ep4": MeshConfig({"tensor": 4}, ShardingRules(expert=("expert", "tensor"), expert_mlp=())),
}


def rows_plan(config: DecoderConfig, rows: ShardRows) -> StepPlan:
    """As many rows, as the scheduler plans them."""
    of_row = np.ones(rows.count, np.int32)
    return StepPlan(
        index=0,
        kind=StepKind.MIXED,
        num_decode=0,
        slots=np.arange(rows.count, dtype=np.int32),
        epochs=0 * of_row,
        starts=rows.before * of_row,
        counts=rows.tokens * of_row,
        scored=rows.scored * of_row,
        samples=of_row,
        unread=of_row,
        tokens=np.zeros(rows.count * rows.tokens, np.int32),
        targets=np.full(rows.count * rows.scored, -1, np.int32),
        block_updates=(np.zeros((0, 3), np.int32),) * len(config.kv_groups),
        copies=(np.zeros((0, 3), np.int32),) * len(config.kv_groups),
        logprobs=False,
        admissions=(),
    )


@pytest.mark.parametrize("rows", [ShardRows(1, 1, 0), ShardRows(3, 1, 40), ShardRows(2, 8, 5), ShardRows(1, 16, 0)])
@pytest.mark.parametrize("name", MODELS)
def test_one_device_does_what_the_engine_counts(name: str, rows: ShardRows) -> None:
    config = parse_config(MODELS[name])
    model = random_model(config, dtype=np.dtype("float32"))
    totals = StepCostTotals(small_shapes(64, config.kv_groups[0].window), step_costs(model))
    totals.add(rows_plan(config, rows))
    totals.count()
    parts = step_of(device_model(config, model.dtype, "cpu", ONE_DEVICE), [rows]).parts
    assert sum(part.ops for part in parts) == pytest.approx(totals.flops, rel=1e-9)
    # What is expected of experts is no more than what the engine allows for.
    assert sum(part.bytes for part in parts if part.name != "experts") == pytest.approx(
        totals.bytes - step_costs(model).expert_bytes(rows.count * rows.tokens, 1), rel=1e-9
    )


def test_experts_that_a_step_reads_and_the_busiest_device() -> None:
    config = parse_config(MODELS["experts"])
    experts = config.layers[0].experts
    assert experts is not None
    rng = np.random.default_rng(0)
    tokens = rng.random((4000, 3, experts.count)).argsort(axis=-1)[..., : experts.chosen]
    draws = [{*drawn.ravel().tolist()} for drawn in tokens]
    model = device_model(config, np.dtype("float32"), "cpu", MESHES["ep4"])
    (part,) = [part for part in step_of(model, [ShardRows(3, 1, 8)]).parts if part.name == "experts"]
    everything = sum(one.layers * one.slots * one.bytes for one in model.experts)
    assert part.bytes / everything == pytest.approx(np.mean([len(drawn) for drawn in draws]) / experts.count, rel=0.02)


def experts_of(mesh: str, rows: ShardRows, imbalance: float = 1.0) -> StepPart:
    model = device_model(parse_config(MODELS["experts"]), np.dtype("float32"), "cpu", MESHES[mesh])
    (found,) = [part for part in step_of(model, [rows], imbalance).parts if part.name == "experts"]
    return found


def test_the_busiest_device_of_those_that_have_whole_experts() -> None:
    rows = ShardRows(3, 1, 8)
    even, busy = experts_of("ep4", rows), experts_of("ep4", rows, 1.5)
    assert busy.ops == pytest.approx(1.5 * even.ops)
    assert busy.bytes > even.bytes
    assert experts_of("ep4", rows, 9) == experts_of("ep4", rows, 4)  # one device cannot have more than all
    assert experts_of("tp2", rows, 1.5) == experts_of("tp2", rows)
    # A token chooses two of eight: some device reads one whole expert at least, which tp splits over all.
    one, parts = experts_of("ep4", ShardRows(1, 1, 8)), experts_of("tp2", ShardRows(1, 1, 8))
    layers = parse_config(MODELS["experts"]).num_layers
    each = experts_of("ep4", ShardRows(1, 10**6, 8)).bytes / layers / 2
    assert one.bytes == pytest.approx(layers * each)
    assert parts.bytes == pytest.approx(layers * 2 * each / 2)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", MODELS)
def test_exchanges_are_two_a_layer_and_one_for_the_embedding(name: str, mesh: str) -> None:
    config, over = parse_config(MODELS[name]), MESHES[mesh]
    model = device_model(config, np.dtype("float16"), "gpu", over)
    found = step_of(model, [ShardRows(5, 2, 8)]).exchanges
    size = 10 * config.hidden_size * 2
    expected = [Exchange("all-reduce", size, ("tensor",), 1 + 2 * config.num_layers)]
    assert list(found) == ([] if mesh == "one" else expected)


def compare_with_arrays() -> None:
    """In a process of eight devices: what lies on the first, of every model and mesh."""
    import jax.numpy as jnp

    from jaxinfer.parallel.mesh import make_mesh
    from jaxinfer.runner.fit.memory import block_bytes

    for name, fields in MODELS.items():
        for mesh_name, mesh in MESHES.items():
            dtype, config = jnp.dtype("float32"), parse_config(fields)
            loaded = random_model(config.over(*mesh.parts), dtype=dtype, mesh=make_mesh(mesh), rules=mesh.rules)
            arrays = {id(array): array for array in (*loaded.weights, *loaded.head)}.values()
            held = sum(array.addressable_shards[0].data.nbytes for array in arrays)
            model = device_model(config, dtype, "cpu", mesh)
            assert model.weight_bytes == held, (name, mesh_name, model.weight_bytes, held)
            kept = tuple(block_bytes(loaded, group, 16) // 16 for group in range(len(config.kv_groups)))
            assert model.kv_bytes == kept, (name, mesh_name)


@pytest.mark.long
def test_bytes_are_those_of_arrays_on_devices() -> None:
    run_on_devices(compare_with_arrays, 8)
