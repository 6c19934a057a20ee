"""Small models of every family with what transformers or NumPy computed of them (scripts/make_goldens.py)."""

import json
from pathlib import Path

import jax.numpy as jnp

from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import LoadedModel, load_model

GOLDENS = Path(__file__).resolve().parent.parent / "goldens"
FAMILIES = sorted(path.name for path in GOLDENS.iterdir())


def load(folder: Path, **options) -> LoadedModel:
    config = parse_config(json.loads((folder / "config.json").read_text()))
    return load_model(folder, config, **{"dtype": jnp.float32, **options})
