"""Llama-3.1-8B on a TPU v5e, by what its programs took when they were compiled (scripts/check_programs.py)."""

import json

import pytest
from jaxinfer_kernels.check.command import RECORDS
from jaxinfer_kernels.check.targets import FOLDER, read_target
from program_cases import FITTING_LENGTH, FITTING_SEQUENCES, fitting_shapes
from program_models import FITTING, Model

from jaxinfer.models.loaded import plan_model
from jaxinfer.runner.fit.memory import fit_blocks, slot_bytes
from jaxinfer.runner.platform.values import resolve_dtype

BLOCK = 128


@pytest.mark.parametrize("model", FITTING["v5e"], ids=lambda model: model.quantization)
def test_sequences_beside_weights_and_temporaries(model: Model) -> None:
    """Those that are asked for fit into nine tenths of its memory, and two more."""
    config, shape = model.config(None), f"{model.title}, 32 layers, {FITTING_SEQUENCES} x {FITTING_LENGTH} tokens"
    rows = [row for row in json.loads((RECORDS / "programs.json").read_text()) if row["shape"].startswith(shape)]
    assert {row["program"].split()[0] for row in rows} == {"decode", "mixed"}
    plan, shapes = plan_model(config, resolve_dtype("bfloat16")), fitting_shapes(config, BLOCK)
    taken = sum(weight.bytes("types") for weight in (*plan.weights, *plan.head))
    taken += max(row["temporaries"] for row in rows)
    taken += shapes.num_slots * slot_bytes(config.vocab_size, 1, shapes.blocks_per_row)
    block = BLOCK * config.num_layers * 2 * 8 * 128 * 2
    limit = int(0.9 * read_target(FOLDER, "v5e").hbm_bytes)
    (blocks,) = fit_blocks(limit - taken, [block], [2**31])
    assert (blocks - 1) // (FITTING_LENGTH // BLOCK) == FITTING_SEQUENCES + 2
