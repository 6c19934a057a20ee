"""Restore a part with a damaged chunk: `python -m tests.convert.restore_damaged FOLDER missing|"cut off"`."""

import gc
import sys
import time
from pathlib import Path

import jax
import numpy as np

from jaxinfer.checkpoint.leaves import FOLDER, Leaves, save_part
from jaxinfer.errors import ModelError


def main(folder: Path, damage: str) -> None:
    sizes = {"blocks.0.a": 1, "blocks.0.b": 8, "blocks.0.c": 8}
    arrays = {name: np.random.default_rng(0).random((size, 2**20), "f4") for name, size in sizes.items()}
    (folder / FOLDER).mkdir()
    save_part(folder / FOLDER / "blocks.0", {name: jax.numpy.asarray(array) for name, array in arrays.items()})
    chunk = folder / FOLDER / "blocks.0" / "blocks.0.a" / "0.0"
    content = chunk.read_bytes()
    chunk.unlink()
    if damage == "cut off":
        chunk.write_bytes(content[:100])
    leaves = Leaves(folder, {name: (array.shape, "float32") for name, array in arrays.items()})
    try:
        leaves.restore({name: jax.sharding.SingleDeviceSharding(jax.devices()[0]) for name in arrays})
    except ModelError as error:
        print(error)
    time.sleep(1)  # other reads end
    gc.collect()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
