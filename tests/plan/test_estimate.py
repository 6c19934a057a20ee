"""What a mesh's devices hold, against what an engine allots; times of steps, against what is worked out by hand."""

from dataclasses import replace

import pytest

from jaxinfer.config import EngineConfig, ModelConfig, SchedulerConfig
from jaxinfer.errors import ParameterError
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import abstract_model
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.parallel.rules import ShardingRules
from jaxinfer.parallel.topology import Topology
from jaxinfer.plan.chip import read_chip
from jaxinfer.plan.estimate import MeshPlan, plan_mesh
from jaxinfer.plan.place import topology_of
from jaxinfer.plan.service import Workload, service
from jaxinfer.plan.work import ShardRows
from jaxinfer.runner.fit import memory
from tests.runner import mesh_matrix

ASKED = EngineConfig(load=ModelConfig(max_model_len=96), scheduler=SchedulerConfig(max_num_seqs=64))
H200 = read_chip("h200")


def plan(name: str = "two KV heads", mesh: MeshConfig = ONE_DEVICE, chip: str = "h200", **changes) -> MeshPlan:
    return plan_mesh(ASKED, parse_config(mesh_matrix.MODELS[name]), mesh, "it", read_chip(chip), **changes)


@pytest.mark.parametrize("name", ["two KV heads", "windowed", "experts"])
def test_pages_are_those_that_an_engine_allots(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = plan(name)
    model = abstract_model(found.model.config, dtype=found.model.dtype)
    taken = found.memory.temporaries
    monkeypatch.setattr(memory, "step_temporaries", lambda *_: taken)
    allotted = memory.device_blocks(model, found.shapes, limit=found.memory.usable, cache=None)
    assert list(found.memory.blocks) == allotted
    few = found.memory.usable - found.memory.left + (8 << 20)
    assert memory.device_blocks(model, found.shapes, limit=few, cache=None) != allotted


def test_memory_is_shared_out_and_what_is_missing_is_told() -> None:
    found = plan().memory
    assert found.total == H200.memory.bytes
    assert found.usable == int(0.9 * 0.97 * found.total)  # a GPU's pool is not planned to the last byte
    assert plan(chip="v6e").memory.usable == int(0.9 * read_chip("v6e").memory.bytes)
    assert found.left + found.weights + found.slots + found.temporaries == found.usable
    large = parse_config({**mesh_matrix.MODELS["dense"], "hidden_size": 8192, "num_hidden_layers": 400,
                          "intermediate_size": 65536, "head_dim": 128})  # fmt: skip
    none = plan_mesh(ASKED, large, ONE_DEVICE, "it", H200)
    assert (none.holds(1), service(none, Workload(10, 10), 4).batch) == (0, 0)
    over = none.memory
    assert over.left < 0
    # A scratch block and one for the sequence, beside what is missing already.
    token = 400 * 2 * 8 * 128 * 2
    assert none.lacks(1) == 2 * token * none.shapes.block_size - over.left
    assert over.blocks == ()


def test_a_decode_step_of_one_device_reads_weights_and_keys() -> None:
    found = plan()
    config, bandwidth = found.model.config, H200.memory.bytes_per_second
    kept = config.num_layers * 2 * 2 * 16 * 2  # layers, keys and values, two heads of 16, two bytes
    step = found.decode(10, 50)
    assert step.seconds == pytest.approx((found.memory.weights - _table(found) + 10 * 52 * kept) / bandwidth, rel=1e-3)
    assert step.bound == "memory"
    assert found.time(ShardRows(1, 4000, 0)).bound == "products"


def _table(found: MeshPlan) -> int:
    """Bytes of an embedding that is no head."""
    config = found.model.config
    return 0 if config.tie_word_embeddings else 2 * config.vocab_size * config.hidden_size


def test_a_mesh_reads_less_on_each_device_and_exchanges() -> None:
    one, four = plan().decode(8, 64), plan(mesh=MeshConfig({"tensor": 4})).decode(8, 64)
    assert [term.name for term in four.terms] == [*(term.name for term in one.terms), "exchanges"]
    assert all(a.seconds > b.seconds for a, b in zip(one.terms, four.terms, strict=False))
    assert four.terms[-1].bound == "links"
    # With a group of devices each, a shard decodes half of the requests.
    two = plan(mesh=MeshConfig({"data": 2})).decode(8, 64)
    assert two == plan().decode(4, 64)


def test_requests_that_fit_have_blocks_for_all_of_their_tokens() -> None:
    found = plan("windowed")
    (group,) = found.shapes.groups
    assert group.window == 12
    size, count = found.shapes.block_size, found.memory.blocks[0] - 1
    assert [found.holds(tokens) for tokens in (1, size, size + 1, 96)] == [count, count, count // 2, count // 2]
    assert service(found, Workload(60, 20), 10**6).batch == found.shapes.max_num_seqs
    assert service(plan(mesh=MeshConfig({"data": 2})), Workload(60, 20), 63).batch == 63


def test_one_request_decodes_after_its_prompt() -> None:
    found, work = plan(), Workload(60, 20)
    step, prompt = found.decode(1, 70).seconds, found.prefill(60)
    told = service(found, work, 1)
    assert (told.ttft, told.itl) == pytest.approx((prompt, step))
    assert told.tokens_per_second == pytest.approx(20 / (prompt + 19 * step))
    assert service(found, Workload(60, 1), 1).tokens_per_second == pytest.approx(1 / prompt)


def test_prompts_fill_steps_in_which_the_others_decode() -> None:
    """Steps of 200 tokens have three prompts of 60: a request decodes beside 5 / 3 of them for each of its own."""
    asked = replace(ASKED, scheduler=SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=200))
    found = plan_mesh(asked, parse_config(mesh_matrix.MODELS["dense"]), ONE_DEVICE, "it", H200)
    mixed = found.time(ShardRows(3, 60, 0), ShardRows(5, 1, 70)).seconds
    step = found.decode(8, 70).seconds
    told = service(found, Workload(60, 20), 8)
    assert told.itl == pytest.approx((5 / 3 * mixed + (19 - 5 / 3) * step) / 19)
    assert told.tokens_per_second == pytest.approx(8 * 20 / (8 / 3 * mixed + (19 - 5 / 3) * step))
    # Of a prompt longer than a step, each part is one.
    short = plan_mesh(replace(asked, scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=20)),
                      parse_config(mesh_matrix.MODELS["dense"]), ONE_DEVICE, "it", H200)  # fmt: skip
    part = short.time(ShardRows(1, 20, 20), ShardRows(1, 1, 70)).seconds
    assert service(short, Workload(60, 20), 2).itl == pytest.approx((3 * part + 16 * short.decode(2, 70).seconds) / 19)


def test_what_a_step_does_not_score_it_does_not_read_the_head_for() -> None:
    found = plan()
    assert "head" not in [term.name for term in found.time(ShardRows(1, 10, 0, 0)).terms]


@pytest.mark.parametrize(
    ("mesh", "chip", "topology"),
    [
        (ONE_DEVICE, "v6e", "v6e:1x1"),
        (MeshConfig({"tensor": 2}), "v6e", "v6e:2x2"),  # there is no slice of two
        (MeshConfig({"tensor": 8}), "v5e", "v5e:2x4"),
        (MeshConfig({"tensor": 64}), "v6e", "v6e:8x8"),
        (MeshConfig({"tensor": 8}), "v7x", "v7x:2x2x1"),
        (MeshConfig({"tensor": 16}), "v7x", "v7x:2x2x2"),
        (MeshConfig({"tensor": 64}), "v5p", "v5p:4x4x4"),
        (MeshConfig({"tensor": 4}), "a100", "a100:1x1x4"),
        (MeshConfig({"data": 2, "tensor": 8}), "b200", "b200:1x2x8"),
        (MeshConfig({"tensor": 8}, topology=Topology.parse("v6e:2x4")), "v6e", "v6e:2x4"),
    ],
)
def test_chips_that_a_mesh_lies_on(mesh: MeshConfig, chip: str, topology: str) -> None:
    found = topology_of(mesh, read_chip(chip))
    assert found == Topology.parse(topology)


def test_what_cannot_be_placed_or_split_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"mesh: is made for v6e:2x4, not for v5e"):
        topology_of(MeshConfig({"tensor": 8}, topology=Topology.parse("v6e:2x4")), read_chip("v5e"))
    with pytest.raises(ParameterError, match=r"mesh: tensor=512 needs 512 chips; there is no such slice of v6e"):
        topology_of(MeshConfig({"tensor": 512}), read_chip("v6e"))
    with pytest.raises(ParameterError, match=r"mesh: rules\.head_dim: its exchanges are not planned"):
        plan(mesh=MeshConfig({"tensor": 2}, ShardingRules(head_dim=("tensor",), kv_heads=())))
    with pytest.raises(ParameterError, match="dtype: float32: chips' rates of such products are not known"):
        plan_mesh(replace(ASKED, load=ModelConfig(dtype="float32")), parse_config(mesh_matrix.MODELS["dense"]),
                  ONE_DEVICE, "it", H200)  # fmt: skip
    with pytest.raises(ParameterError, match="mesh: 8 query heads"):
        plan(mesh=MeshConfig({"tensor": 3}))


def test_a_context_that_blocks_do_not_hold_is_told_or_cut() -> None:
    """Of one v5e the model leaves room for less than the context."""
    long = mesh_matrix.MODELS["dense"] | {"max_position_embeddings": 10**6, "hidden_size": 4096, "head_dim": 512}
    asked = EngineConfig(load=ModelConfig(max_model_len=10**6), scheduler=SchedulerConfig(max_num_seqs=4))
    found = plan_mesh(asked, parse_config(long), ONE_DEVICE, "it", read_chip("v5e"))
    assert "do not fit into the KV blocks" in (found.refused or "")
    cut = plan_mesh(replace(asked, load=ModelConfig()), parse_config(long), ONE_DEVICE, "it", read_chip("v5e"))
    assert cut.refused is None
    assert cut.shapes.max_model_len == (cut.memory.blocks[0] - 1) * cut.shapes.block_size
