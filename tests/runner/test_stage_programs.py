"""What the check of stage programs asks of them, and that those of an engine give it."""

import jax
import jax.numpy as jnp
import pytest
from stage_programs import check_handed

from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import abstract_model
from jaxinfer.runner.programs.table import ProgramTable
from jaxinfer.runner.step.begun_rows import Passed
from jaxinfer.runner.step.forward import Forward
from jaxinfer.runner.step.stage import Stage, stages_of
from jaxinfer.speculation import Speculation
from tests.runner.mesh_matrix import MODELS

BFLOAT16 = jnp.dtype("bfloat16")
FIRST, LAST = Stage(0, 2, (0,)), Stage(1, 2, (0,))


def array(*shape: int, dtype: str = "bfloat16") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def given(hidden: object, scored: object = None) -> Forward:
    return Forward((), (), None, hidden, scored)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("out", "told"),
    [
        (given(array(16, 128, dtype="float32")), r"hands over float32\[16, 128\]; bfloat16\[16, 128\] is expected"),
        (given(array(8, 128)), r"hands over bfloat16\[8, 128\]"),
        (given(array(16, 64)), r"hands over bfloat16\[16, 64\]"),
        (given(array(16, 128), array(8, 4, dtype="int32")), r"hands over bfloat16\[16, 128\], int32\[8, 4\]"),
        (given(None), "hands over ; "),
    ],
)
def test_anything_but_hidden_states_is_refused(out: Forward, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check_handed(out, FIRST, (16, 128))
    check_handed(out, LAST, (16, 128))
    check_handed(given(array(16, 128)), FIRST, (16, 128))


@pytest.mark.few(1)
@pytest.mark.parametrize("drafting", [None, Speculation(3)])
@pytest.mark.parametrize("name", ["dense", "windowed", "experts"])
def test_a_stage_is_given_what_the_one_before_hands_over(name: str, drafting: Speculation | None) -> None:
    """And where rows draft what the first stage knows of them."""
    whole = parse_config(MODELS[name] | {"num_hidden_layers": 4})
    parts = [whole.stage(0, 1), whole.stage(1, 3), whole.stage(3, 4)]
    sizes = {"stages": 3, "drafting": drafting}
    shapes = EngineShapes(8, 32, 8, 96, 16, (KVGroup(whole.kv_groups[0].window, 20),), whole.vocab_size, **sizes)
    stages = stages_of(whole, parts)
    tables = [
        ProgramTable(abstract_model(part, dtype=BFLOAT16), shapes, stage)
        for part, stage in zip(parts, stages, strict=True)
    ]
    for number, (table, stage) in enumerate(zip(tables[:-1], stages, strict=False)):
        for kind, size in (("decode", 8), ("mixed", 32), *((("verify", 8),) if drafting else ())):
            program, following = table[kind, size], tables[number + 1][kind, size]
            out = jax.eval_shape(program.function, *program.arguments)
            check_handed(out, stage, (4 * size if kind == "verify" else size, whole.hidden_size))
            (taken,) = (one for one in following.arguments if isinstance(one, Passed))
            assert bool(drafting) == (taken.rows is not None)
            assert (taken.hidden.shape, taken.hidden.dtype) == (out.hidden.shape, out.hidden.dtype)
            if taken.rows is not None and stage.is_first:
                first = jax.eval_shape(table["draft", size].function, *table["draft", size].arguments)
                rows = first[2] if kind == "verify" else out.rows
                assert (taken.rows.shape, taken.rows.dtype) == (rows.shape, rows.dtype)
