"""The folder in the package: small, complete, and what its files declare."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from demo_training.template import CHAT_TEMPLATE, END_OF_TEXT, IM_END, IM_START
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

import jaxinfer
from jaxinfer.models.registry import parse_config

DEMO = Path(jaxinfer.__file__).parent / "demo"
FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
TOKENIZER = Tokenizer.from_file(str(DEMO / "tokenizer.json"))

pytestmark = pytest.mark.smoke


def read(name: str) -> dict[str, Any]:
    return json.loads((DEMO / name).read_text(encoding="utf-8"))


def header() -> dict[str, Any]:
    """Of the safetensors file: for each tensor its type, shape and place."""
    with (DEMO / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length))


def test_the_folder_is_small_and_complete():
    files = list(DEMO.iterdir())
    assert {file.name for file in files} == FILES
    assert sum(file.stat().st_size for file in files) <= 4_000_000


def test_the_config_is_known_and_fits_the_tokenizer():
    config = parse_config(read("config.json"))
    assert (config.qk_norm, config.tie_word_embeddings, config.qkv_bias) == (True, True, False)
    assert config.vocab_size == TOKENIZER.get_vocab_size()
    assert config.eos_token_ids == (TOKENIZER.token_to_id(IM_END),)


def test_the_weights_are_those_of_the_config():
    config = parse_config(read("config.json"))
    tensors = {name: entry for name, entry in header().items() if name != "__metadata__"}
    assert {entry["dtype"] for entry in tensors.values()} == {"BF16"}
    hidden, queries = config.hidden_size, config.num_heads * config.head_dim
    keys, inner = config.num_kv_heads * config.head_dim, config.intermediate_size
    layer = {
        "self_attn.q_proj": [queries, hidden],
        "self_attn.k_proj": [keys, hidden],
        "self_attn.v_proj": [keys, hidden],
        "self_attn.o_proj": [hidden, queries],
        "self_attn.q_norm": [config.head_dim],
        "self_attn.k_norm": [config.head_dim],
        "mlp.gate_proj": [inner, hidden],
        "mlp.up_proj": [inner, hidden],
        "mlp.down_proj": [hidden, inner],
        "input_layernorm": [hidden],
        "post_attention_layernorm": [hidden],
    }
    expected = {"model.embed_tokens.weight": [config.vocab_size, hidden], "model.norm.weight": [hidden]}
    for index in range(config.num_layers):
        expected |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    assert {name: entry["shape"] for name, entry in tensors.items()} == expected


def test_generation_ends_at_both_ends():
    ends = read("generation_config.json")["eos_token_id"]
    assert ends == [TOKENIZER.token_to_id(IM_END), TOKENIZER.token_to_id(END_OF_TEXT)]


def test_the_template_is_the_one_trained_with():
    config = read("tokenizer_config.json")
    assert config["chat_template"] == CHAT_TEMPLATE
    assert config["eos_token"] == IM_END
    declared = {int(i): entry["content"] for i, entry in config["added_tokens_decoder"].items()}
    assert declared == {TOKENIZER.token_to_id(text): text for text in (END_OF_TEXT, IM_START, IM_END)}


@given(st.text(max_size=60))
def test_any_text_survives_the_tokenizer(text: str):
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text
