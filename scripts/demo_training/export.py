"""Writes a trained decoder as a Hugging Face folder."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from flax import nnx
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from demo_training.model import Params
from demo_training.template import CHAT_TEMPLATE, END_OF_TEXT, IM_END, IM_START
from demo_training.tokens import special


def write_folder(out: Path, raw: dict[str, Any], params: Params, tokenizer: Tokenizer) -> None:
    """config.json, model.safetensors in bfloat16, tokenizer.json, tokenizer_config.json, generation_config.json."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: np.ascontiguousarray(x.astype(ml_dtypes.bfloat16)) for name, x in named_tensors(params).items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    eos = [special(tokenizer, IM_END), special(tokenizer, END_OF_TEXT)]
    _write_json(out / "config.json", raw)
    _write_json(out / "tokenizer_config.json", _tokenizer_config(raw, tokenizer))
    sampling = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20}
    _write_json(out / "generation_config.json", {"eos_token_id": eos, "pad_token_id": eos[1], **sampling})


def named_tensors(params: Params) -> dict[str, np.ndarray]:
    """The decoder's fused and stacked arrays under Hugging Face's names, float32."""
    flat: dict[tuple[Any, ...], np.ndarray] = {
        path: np.asarray(variable[...]) for path, variable in nnx.to_flat_state(params)
    }
    tensors = {"model.embed_tokens.weight": flat["embed",], "model.norm.weight": flat["norm",]}
    for layer in sorted({path[1] for path in flat if path[0] == "blocks"}):
        matrices = {path[-1]: x for path, x in flat.items() if path[:2] == ("blocks", layer)}
        vectors = {path[-1]: x[layer] for path, x in flat.items() if path[0] == "vectors"}
        found = _attention(matrices, vectors) | _rest(matrices, vectors)
        tensors |= {f"model.layers.{layer}.{name}.weight": x for name, x in found.items()}
    return tensors


def _attention(matrices: dict[str, np.ndarray], vectors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    qkv, out = matrices["qkv"], matrices["out"]
    hidden = qkv.shape[-1]
    return {
        "self_attn.q_proj": qkv[:, :-2].reshape(-1, hidden),
        "self_attn.k_proj": qkv[:, -2].reshape(-1, hidden),
        "self_attn.v_proj": qkv[:, -1].reshape(-1, hidden),
        "self_attn.o_proj": out.reshape(hidden, -1),
        "self_attn.q_norm": vectors["q_norm"],
        "self_attn.k_norm": vectors["k_norm"],
    }


def _rest(matrices: dict[str, np.ndarray], vectors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        "mlp.gate_proj": matrices["gate_up"][0],
        "mlp.up_proj": matrices["gate_up"][1],
        "mlp.down_proj": matrices["down"],
        "input_layernorm": vectors["input_norm"],
        "post_attention_layernorm": vectors["mlp_norm"],
    }


def _tokenizer_config(raw: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    specials = {
        str(tokenizer.token_to_id(text)): {
            "content": text,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for text in (END_OF_TEXT, IM_START, IM_END)
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": specials,
        "bos_token": None,
        "eos_token": IM_END,
        "pad_token": END_OF_TEXT,
        "model_max_length": raw["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
