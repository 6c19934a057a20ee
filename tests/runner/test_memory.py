"""How many KV blocks fit, and that what is reckoned is what programs and arrays really take."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.errors import ParameterError
from jaxinfer.models.loaded import random_model
from jaxinfer.quantization.kv import KVCodes
from jaxinfer.runner.fit import memory
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.programs.compiled import Programs
from jaxinfer.runner.programs.table import Name
from tests.runner.tiny import tiny_model, tiny_shapes

MODEL = tiny_model((None, 12))
SHAPES = tiny_shapes(MODEL, max_num_seqs=2, max_num_batched_tokens=32)


def test_blocks_fit_the_budget_and_no_grid_step_more_would() -> None:
    rng = np.random.default_rng(50)
    for _ in range(300):
        groups = int(rng.integers(1, 4))
        costs = rng.integers(1, 5000, groups).tolist()
        caps = rng.integers(2, 10_000, groups).tolist()
        budget = int(rng.integers(0, 10_000_000))
        blocks = memory.fit_blocks(budget, costs, caps)
        taken = sum(cost * count for cost, count in zip(costs, blocks, strict=True))
        assert taken <= budget
        assert all(count <= cap for count, cap in zip(blocks, caps, strict=True))
        level = max(blocks)
        assert all(count == min(level, cap) for count, cap in zip(blocks, caps, strict=True))
        more = [min(level + 64, cap) for cap in caps]
        if level + 64 <= max(caps):
            assert sum(cost * count for cost, count in zip(costs, more, strict=True)) > budget
        if level < max(caps):
            step = min(64, 2 ** int(np.log2(max(level, 64) / 64)))
            assert level % step == 0  # a grid, so that a little less memory gives the same programs


@pytest.mark.parametrize(("codes", "width"), [(None, 4), ("bfloat16", 2), ("float8_e4m3fn", 1), ("int8", 1)])
def test_a_block_costs_what_its_arrays_take(codes: KVCodes | None, width: int) -> None:
    model = tiny_model((None, 12), codes=codes)
    for group, kv in enumerate(JaxRunner(model, SHAPES).stages[0].kv):
        blocks = SHAPES.groups[group].num_blocks
        assert memory.block_bytes(model, group, 4) * blocks == kv.nbytes == blocks * 4 * 2 * 2 * 8 * width


def test_slot_state_is_not_underestimated() -> None:
    runner = JaxRunner(MODEL, SHAPES)
    arrays = jax.tree.leaves(
        (runner.stages[0].slots.state, runner.stages[0].slots.params, runner.stages[0].slots.tables)
    )
    slots, groups = SHAPES.num_slots, len(SHAPES.groups)
    assert sum(array.nbytes for array in arrays) <= slots * (2 * 300 + 4 * groups * SHAPES.blocks_per_row + 4096)


def temporaries(shapes: EngineShapes, name: Name) -> int:
    programs = Programs(MODEL, shapes)
    return programs.lower(name).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.long
@pytest.mark.parametrize("name", [("mixed", 32), ("decode", 2)])
def test_temporaries_do_not_depend_on_the_block_count(name) -> None:
    few = temporaries(memory.with_blocks(SHAPES, [64, 64]), name)
    many = temporaries(memory.with_blocks(SHAPES, [16384, 1024]), name)
    assert few == many
    # A copy of all blocks would show.
    assert 16384 * memory.block_bytes(MODEL, 0, 4) > 10 * few


@pytest.mark.long
def test_step_temporaries_are_those_of_the_largest_program() -> None:
    assert SHAPES.max_scored == 2
    found = memory.step_temporaries(MODEL, SHAPES)
    largest: list[Name] = [("admit", 0), ("mixed", 32), ("decode", 2), ("sample", 2)]
    assert found == max(temporaries(SHAPES, name) for name in largest)


def blocks_of(model, limit: int, cache: Path | None = None) -> list[int]:
    return memory.device_blocks(model, SHAPES, limit=limit // 2, cache=cache)


@pytest.mark.long
def test_a_devices_blocks_are_what_is_left(tmp_path, monkeypatch) -> None:
    made = []
    measure = memory.step_temporaries

    def measured(*arguments) -> int:
        made.append(1)
        return measure(*arguments)

    monkeypatch.setattr(memory, "step_temporaries", measured)
    weights = sum(array.nbytes for array in (*MODEL.weights, *MODEL.head))
    limit = 8 << 20
    blocks = blocks_of(MODEL, limit, tmp_path)
    taken = sum(memory.block_bytes(MODEL, g, 4) * count for g, count in enumerate(blocks))
    step, cost = measure(MODEL, SHAPES), sum(memory.block_bytes(MODEL, g, 4) for g in range(2))
    assert weights + taken + step <= limit // 2
    assert weights + taken + step > limit // 2 - 64 * cost - 40_000
    assert blocks_of(MODEL, limit, tmp_path) == blocks
    assert len(made) == 1  # remembered beside the compile cache
    (note,) = tmp_path.glob("temporaries-*.json")
    note.write_text("{")
    assert blocks_of(MODEL, limit, tmp_path) == blocks
    assert len(made) == 2
    with pytest.raises(ParameterError, match="no room for KV blocks") as error:
        blocks_of(MODEL, 2 * weights, tmp_path)
    assert error.value.param == "gpu_memory_utilization"


def test_a_tied_head_is_counted_once(monkeypatch) -> None:
    monkeypatch.setattr(memory, "step_temporaries", lambda *_: 0)
    tied = random_model(replace(MODEL.config, tie_word_embeddings=True), dtype=MODEL.dtype)
    head = MODEL.head[0].nbytes
    own = sum(array.nbytes for array in MODEL.weights)
    assert sum(array.nbytes for array in tied.weights) == own
    # With so much more memory as its own head takes, the untied model has as many blocks.
    assert blocks_of(tied, 2_000_000) == blocks_of(MODEL, 2_000_000 + 2 * head)


def test_useful_blocks_hold_what_can_run() -> None:
    assert memory.useful_blocks(SHAPES) == [2**31, 1 + 2 * 2 * ((12 + 2 * 32) // 4 + 1)]
    only = replace(SHAPES, groups=SHAPES.groups[1:])
    assert memory.useful_blocks(only) == [1 + 2 * 2 * ((12 + 2 * 32) // 4 + 1)]
