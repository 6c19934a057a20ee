"""Model folders made on the spot: config.json, random weights, a tokenizer. NumPy alone: no device is touched."""

import json
import string
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

Shapes = dict[str, tuple[tuple[int, ...], float | None]]
"""Name to shape and standard deviation; None: all ones."""


def write_folder(folder: Path, config: dict[str, Any], dtype: str, seed: int = 0) -> None:
    """Writes a folder in Hugging Face layout; its logits have a standard deviation of about 3.

    dtype: `bfloat16` or `float32`. The same arguments write the same files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config, "dtype": dtype}, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": config["eos_token_id"]}))
    write_tokenizer(folder, config["vocab_size"])
    names = tensor_shapes(config)

    def make(index: int, shape: tuple[int, ...], std: float | None) -> np.ndarray:
        return _values(shape, std, dtype, (seed, index))

    with ThreadPoolExecutor(8) as pool:
        tensors = dict(zip(names, pool.map(make, range(len(names)), *zip(*names.values(), strict=True)), strict=True))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def tensor_shapes(config: dict[str, Any]) -> Shapes:
    """The tensors of a Llama or Qwen3 checkpoint, by their Hugging Face names."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    table = (config["vocab_size"], hidden)
    shapes: Shapes = {"model.embed_tokens.weight": (table, 3 * hidden**-0.5), "model.norm.weight": ((hidden,), None)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (table, 3 * hidden**-0.5)
    layer: Shapes = {
        "input_layernorm": ((hidden,), None),
        "post_attention_layernorm": ((hidden,), None),
        "self_attn.q_proj": ((heads, hidden), hidden**-0.5),
        "self_attn.k_proj": ((keys, hidden), hidden**-0.5),
        "self_attn.v_proj": ((keys, hidden), hidden**-0.5),
        "self_attn.o_proj": ((hidden, heads), heads**-0.5),
        "mlp.gate_proj": ((inner, hidden), hidden**-0.5),
        "mlp.up_proj": ((inner, hidden), hidden**-0.5),
        "mlp.down_proj": ((hidden, inner), inner**-0.5),
    }
    if config["model_type"] == "qwen3":
        layer |= {"self_attn.q_norm": ((head,), None), "self_attn.k_norm": ((head,), None)}
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{index}.{name}.weight": each for name, each in layer.items()}
    return shapes


def byte_level_vocabulary(size: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens and merges of a byte-level BPE of `size` tokens: an end token, all bytes, lowercase words.

    Every word is one merge of a shorter token and a letter. Raises ValueError where `size` is below 257.
    """
    if size < 257:
        raise ValueError(f"a byte-level vocabulary has at least 257 tokens, not {size}")
    letters = string.ascii_lowercase
    words = ("".join(word) for length in range(2, 6) for word in product(letters, repeat=length))
    chosen = list(islice(words, size - 257))
    return ["<end>", *_byte_letters(), *chosen], [(word[:-1], word[-1]) for word in chosen]


def write_tokenizer(folder: Path, size: int) -> None:
    """tokenizer.json and tokenizer_config.json of that vocabulary; token 0 ends a text."""
    tokens, merges = byte_level_vocabulary(size)
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([tokens[0]])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tokens[0], "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _byte_letters() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _values(shape: tuple[int, ...], std: float | None, dtype: str, seed: tuple[int, int]) -> np.ndarray:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32
    if std is None:
        return np.ones(shape, kind)
    drawn = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return (drawn * np.float32(std)).astype(kind)
