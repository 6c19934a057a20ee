"""A table of config.json files: each loads, with its parameters and the programs that were traced for it, or is refused
with the reason: `.venv/bin/python scripts/config_table.py FOLDER`. Needs no weights."""

import argparse
import json
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer.engine.step.buckets import make_buckets
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.errors import ModelError
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import LoadedModel, abstract_model
from jaxinfer.runner.fit.inspection import count_parameters
from jaxinfer.runner.programs.table import Name, ProgramTable

_ROWS, _TOKENS, _LENGTH, _BLOCK, _BLOCKS = 8, 64, 256, 16, 40


class Row(NamedTuple):
    """One file. refused: why, or empty; then the other fields hold nothing."""

    file: str
    architecture: str
    parameters: int = 0
    traced: tuple[str, ...] = ()
    refused: str = ""


def row(path: Path, *, trace: bool = True) -> Row:
    """Reads a config.json and traces the model's programs over abstract shapes."""
    raw = json.loads(path.read_text())
    architecture = (raw.get("architectures") or ["?"])[0]
    try:
        config = parse_config(raw)
    except ModelError as error:
        return Row(path.name, architecture, refused=str(error).removeprefix("config.json: "))
    # Alike layers are traced once.
    model = abstract_model(config, dtype=jnp.dtype(jnp.bfloat16), layout="stacked")
    return Row(path.name, architecture, count_parameters(model), _traced(model) if trace else ())


def _traced(model: LoadedModel) -> tuple[str, ...]:
    groups = tuple(KVGroup(group.window, _BLOCKS) for group in model.config.kv_groups)
    shapes = EngineShapes(
        max_num_seqs=_ROWS,
        max_num_batched_tokens=_TOKENS,
        max_scored=_ROWS,
        max_model_len=_LENGTH,
        block_size=_BLOCK,
        groups=groups,
        vocab_size=model.config.vocab_size,
    )
    table, buckets = ProgramTable(model, shapes), make_buckets(shapes)
    names: tuple[Name, ...] = (("decode", buckets.rows[-1]), ("mixed", buckets.tokens[-1]), ("sample", _ROWS))
    for name in names:
        program = table[name]
        jax.eval_shape(program.function, *program.arguments)
    return tuple(name for name, _ in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    paths = sorted(parser.parse_args().folder.glob("*.json"))
    started, loaded = time.perf_counter(), 0
    for path in paths:
        found = row(path)
        loaded += not found.refused
        said = found.refused or f"{found.parameters / 1e9:8.3f} B  {', '.join(found.traced)}"
        print(f"{found.file:32} {found.architecture:34} {said}", flush=True)
    print(f"{loaded} of {len(paths)} load, {len(paths) - loaded} are refused; {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
