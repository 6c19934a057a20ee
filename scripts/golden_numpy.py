"""Small random models of the families in numpy_decoder.py, for tests/goldens."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from golden_families import SIZES, Family
from golden_files import LOGITS_STD, TOKENS
from numpy_decoder import DECODERS, NumpyDecoder
from safetensors.numpy import save_file

# What config.json files on the Hub hold beside the sizes.
_FIELDS = {
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "transformers_version": "4.37.1",
    "use_cache": True,
}


class NumpyModel:
    """A GoldenModel. family: its name is one of DECODERS; fields that are None are left out of config.json."""

    def __init__(self, family: Family, seed: int):
        kind = DECODERS[family.name]
        names = {"architectures": [family.name], "model_type": kind.model_type, "torch_dtype": family.dtype}
        fields = {**_FIELDS, **SIZES, **names, **family.fields}
        self.config = {key: value for key, value in fields.items() if value is not None}
        self.tensors = _draw(kind, self.config, np.dtype(family.dtype), seed)
        self.decoder = kind(self.config, self.tensors)

    def logits(self, ids: np.ndarray) -> np.ndarray:
        """[T, vocabulary] float32."""
        return self.decoder.logits(ids).astype(np.float32)

    def save(self, folder: Path) -> None:
        """Writes config.json and model.safetensors."""
        (folder / "config.json").write_text(json.dumps(self.config, indent=2, sort_keys=True) + "\n")
        save_file(self.tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _draw(kind: type[NumpyDecoder], config: dict[str, Any], dtype: np.dtype, seed: int) -> dict[str, np.ndarray]:
    """Random tensors of `dtype`, with logits of the wanted deviation."""
    rng = np.random.default_rng(seed)
    shapes = kind(config, {}).shapes()
    tensors = {name: _scaled(rng.standard_normal(shape), name).astype(dtype) for name, shape in shapes.items()}
    probe = rng.integers(3, SIZES["vocab_size"], TOKENS)
    last_norm = f"{kind.norm}.weight"
    ratio = LOGITS_STD / kind(config, tensors).logits(probe).std()
    return {**tensors, last_norm: (tensors[last_norm] * ratio).astype(dtype)}


def _scaled(noise: np.ndarray, name: str) -> np.ndarray:
    if "norm" in name:
        return 1 + 0.2 * noise
    return 0.3 * noise if name.endswith("bias") else noise * 1.2 * noise.shape[-1] ** -0.5
