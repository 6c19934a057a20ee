"""EAGLE-3 heads with random weights for the tiny models, as folders."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from jaxinfer.models.eagle3 import Eagle3Model
from jaxinfer.models.eagle3_checkpoint import declared_eagle3, load_eagle3
from jaxinfer.models.loaded import LoadedModel
from tests.models.eagle3_numpy import Tensors

RAW: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "vocab_size": 300,
    "draft_vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def shapes_of(raw: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Of every tensor of floats but an embedding."""
    hidden, inner, dim = raw["hidden_size"], raw["intermediate_size"], raw["head_dim"]
    queries, keys = (raw[f"num_{name}_heads"] * dim for name in ("attention", "key_value"))
    norms = ("midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm", "norm")
    return {
        "fc.weight": (hidden, 3 * raw.get("target_hidden_size", hidden)),
        "midlayer.self_attn.q_proj.weight": (queries, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, queries),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
        "lm_head.weight": (raw["draft_vocab_size"], hidden),
        **{f"{name}.weight": (hidden,) for name in norms},
    }


def random_tensors(raw: dict[str, Any], seed: int = 0) -> Tensors:
    """All of a head without an embedding, float32; its draft vocabulary is drawn from the target's."""
    rng = np.random.default_rng(seed)
    found: Tensors = {}
    for name, shape in shapes_of(raw).items():
        scale = 1.0 if len(shape) == 1 else 3 * shape[-1] ** -0.5 if name == "lm_head.weight" else shape[-1] ** -0.5
        found[name] = (rng.standard_normal(shape) * scale + (len(shape) == 1)).astype(np.float32)
    drafts, vocabulary = raw["draft_vocab_size"], raw["vocab_size"]
    kept = np.sort(rng.choice(vocabulary, drafts, replace=False))
    found["d2t"] = (kept - np.arange(drafts)).astype(np.int64)
    found["t2d"] = np.isin(np.arange(vocabulary), kept)
    return found


def write_head(folder: Path, raw: dict[str, Any], tensors: Tensors) -> Path:
    """A folder as SpecForge writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    save_file({name: np.ascontiguousarray(x) for name, x in tensors.items()}, folder / "model.safetensors")
    return folder


def tiny_head(target: LoadedModel, **changes: Any) -> Eagle3Model:
    """A head of `RAW` that drafts for a tiny model."""
    with TemporaryDirectory() as name:
        folder = write_head(Path(name), RAW | changes, random_tensors(RAW | changes))
        return load_eagle3(folder, declared_eagle3(folder, target.config), dtype=target.dtype, mesh=target.mesh)
