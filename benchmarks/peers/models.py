"""The models that the engines share: a folder in Hugging Face layout, and GGUF files of the same weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from benchmarks.device.folder import byte_level_vocabulary, write_folder

SMOLLM2_135M: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 0,
}
QWEN3_06B: dict[str, Any] = {
    **SMOLLM2_135M,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
}
TINY: dict[str, Any] = {
    **SMOLLM2_135M,
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def make_folder(folder: Path, config: dict[str, Any]) -> Path:
    """The model in bfloat16, which float32 holds exactly: both types compute with the same numbers."""
    if not (folder / "model.safetensors").exists():
        write_folder(folder, config, "bfloat16")
    return folder


def make_gguf(folder: Path, kind: str) -> Path:
    """A GGUF file (`bf16`, `f32`, `q8_0` or `q4_0`) of a folder that `make_folder` wrote; needs the package `gguf`."""
    file = folder / f"model-{kind}.gguf"
    if not file.exists():
        _write_gguf(folder, kind, file)
    return file


def _write_gguf(folder: Path, kind: str, file: Path) -> None:
    import gguf  # pyright: ignore[reportMissingImports]

    config = json.loads((folder / "config.json").read_text())
    quantised = gguf.GGMLQuantizationType[kind.upper()]
    writer = gguf.GGUFWriter(file, config["model_type"])
    _write_fields(writer, config)
    _write_tokenizer(writer, config, gguf)
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = np.asarray(tensor, np.float32)
        if config["model_type"] == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            values = _interleaved(values, config["head_dim"])
        if values.ndim == 1:
            writer.add_tensor(_gguf_name(name), values)
        else:
            packed = gguf.quants.quantize(values, quantised)
            writer.add_tensor(_gguf_name(name), packed, raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_fields(writer: Any, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _write_tokenizer(writer: Any, config: dict[str, Any], gguf: Any) -> None:
    tokens, merges = byte_level_vocabulary(config["vocab_size"])
    kinds = [gguf.TokenType.CONTROL, *[gguf.TokenType.NORMAL] * (len(tokens) - 1)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def _interleaved(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of a query or key projection, halves rotated, in llama.cpp's order, neighbours rotated."""
    split = weight.reshape(-1, 2, head_dim // 2, weight.shape[1])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(weight.shape))


def _gguf_name(name: str) -> str:
    whole = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in whole:
        return whole[name]
    _, _, layer, rest = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{_NAMES[rest]}.weight"
