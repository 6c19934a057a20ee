"""Checkpoints of a run, by orbax."""

import shutil
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

from demo_training.training import State

_KEPT = 3


def save(folder: Path, state: State) -> Path:
    """Writes the state to `folder/step_…` and removes all but the newest few."""
    path = folder.resolve() / f"step_{state.step:07}"
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, _leaves(state), force=True)
    for old in _found(folder)[:-_KEPT]:
        shutil.rmtree(old)
    return path


def newest(folder: Path) -> Path | None:
    """The newest checkpoint of a folder."""
    found = _found(folder)
    return found[-1] if found else None


def load(path: Path, like: State) -> State:
    """The state in a checkpoint. like: one of the same model, for its structure."""
    with ocp.StandardCheckpointer() as checkpointer:
        leaves = checkpointer.restore(path.resolve(), _leaves(like))
    arrays = [leaves[key] for key in sorted(leaves)]
    params, moments = jax.tree.unflatten(jax.tree.structure((like.params, like.optimizer)), arrays[:-1])
    return State(params, moments, int(arrays[-1]))


def _found(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step_*") if path.name.removeprefix("step_").isdigit())


def _leaves(state: State) -> dict[str, jax.Array | np.ndarray]:
    """Return the arrays by number, since orbax knows dicts and not the optimizer's types; the step is the last."""
    arrays = [*jax.tree.leaves((state.params, state.optimizer)), np.asarray(state.step)]
    return {f"{i:05}": array for i, array in enumerate(arrays)}
