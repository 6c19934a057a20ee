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
from demo_training.template import CHAT_TEMPLATE, END_OF_TEXT, IM_END, TAGS
from demo_training.tokenizer import SPECIAL, special
from jaxinfer.checkpoint.sources import Joined, Source, Split, Tensor
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.huggingface import weight_sources


def write_folder(out: Path, raw: dict[str, Any], params: Params, tokenizer: Tokenizer) -> None:
    """config.json, model.safetensors in bfloat16, tokenizer.json, tokenizer_config.json, generation_config.json."""
    out.mkdir(parents=True, exist_ok=True)
    named = named_tensors(parse_config(raw), params)
    tensors = {name: np.ascontiguousarray(x.astype(ml_dtypes.bfloat16)) for name, x in named.items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    eos = [special(tokenizer, IM_END), special(tokenizer, END_OF_TEXT)]
    _write_json(out / "config.json", raw)
    _write_json(out / "tokenizer_config.json", _tokenizer_config(raw, tokenizer))
    sampling = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20}
    _write_json(out / "generation_config.json", {"eos_token_id": eos, "pad_token_id": eos[1], **sampling})


def named_tensors(config: DecoderConfig, params: Params) -> dict[str, np.ndarray]:
    """The decoder's fused and stacked arrays under Hugging Face's names: the loader's own table, read backwards."""
    tensors: dict[str, np.ndarray] = {}
    for path, variable in nnx.to_flat_state(params):
        path, array = tuple(map(_plain, path)), np.asarray(variable[...])
        if path[0] == "vectors":
            parts, layers = list(array), list(range(config.num_layers))
        else:
            parts, layers = [array], [int(path[1])] if path[0] == "blocks" else None
        for source, part in zip(weight_sources(config, path, layers), parts, strict=True):
            tensors |= split_source(source, part)
    return tensors


def _plain(key: object) -> str | int:
    return key if isinstance(key, int) else str(key)


def split_source(source: Source, array: np.ndarray) -> dict[str, np.ndarray]:
    """A weight as the tensors that it was made of, in the shapes of the file."""
    match source:
        case Tensor(name, _):
            return {name: array}
        case Split(inner, _):
            return split_source(inner, array.reshape(inner.shape))
        case Joined(parts, axis):
            ends = np.cumsum([part.shape[axis] for part in parts])[:-1]
            arrays = np.split(array, ends, axis=axis)
            return {k: x for part, one in zip(parts, arrays, strict=True) for k, x in split_source(part, one).items()}
    raise TypeError(f"cannot be written: {source}")


def _tokenizer_config(raw: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    added = {
        str(special(tokenizer, text)): {
            "content": text,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": text in SPECIAL,
        }
        for text in (*SPECIAL, *TAGS)
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": added,
        "bos_token": None,
        "eos_token": IM_END,
        "pad_token": END_OF_TEXT,
        "model_max_length": raw["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
