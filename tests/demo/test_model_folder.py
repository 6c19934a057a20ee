"""The folders in the package: small, complete, and what their files declare."""

import json
import struct
from typing import Any

import pytest
from demo_training.model import MODELS
from demo_training.template import CHAT_TEMPLATE, END_OF_TEXT, IM_END, IM_START, TAGS
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from jaxinfer.build import DEMO_FOLDER
from jaxinfer.model_config.layer_kind import NormKind
from jaxinfer.model_config.registry import parse_config
from tests.model_config.uniform import kind_of

FOLDERS = {"target": DEMO_FOLDER, "draft": DEMO_FOLDER / "draft"}
FILES = {
    *("config.json", "generation_config.json", "model.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "training_log.csv"),
}
TOKENIZER = Tokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json"))

pytestmark = pytest.mark.smoke
each_model = pytest.mark.parametrize("model", FOLDERS)


def read(model: str, name: str) -> dict[str, Any]:
    return json.loads((FOLDERS[model] / name).read_text(encoding="utf-8"))


def tensors(model: str) -> dict[str, Any]:
    """Of the safetensors file: for each tensor its type, shape and place."""
    with (FOLDERS[model] / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return {name: entry for name, entry in json.loads(file.read(length)).items() if name != "__metadata__"}


def parameters(model: str) -> int:
    return sum(entry["data_offsets"][1] - entry["data_offsets"][0] for entry in tensors(model).values()) // 2


def test_the_pair_is_complete_and_small():
    assert {file.name for file in DEMO_FOLDER.iterdir()} == FILES | {"README.md", "draft", "eagle3"}
    assert {file.name for file in FOLDERS["draft"].iterdir()} == FILES
    assert {file.name for file in (DEMO_FOLDER / "eagle3").iterdir()} == {"config.json", "model.safetensors"}
    assert (DEMO_FOLDER / "eagle3/model.safetensors").stat().st_size < 1_000_000
    files = [file for file in DEMO_FOLDER.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 16_000_000
    assert 3_000_000 <= parameters("target") <= 6_000_000
    assert parameters("draft") <= 700_000


def test_the_draft_has_the_targets_tokenizer():
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (FOLDERS["draft"] / name).read_bytes() == (FOLDERS["target"] / name).read_bytes()
    assert 2000 <= TOKENIZER.get_vocab_size() <= 4096


@each_model
def test_the_config_is_known_and_fits_the_tokenizer(model: str):
    config = parse_config(read(model, "config.json"))
    attention = kind_of(config).mixer
    assert (attention.qk_norm, config.tie_word_embeddings, attention.qkv_bias) == (NormKind(), True, False)
    assert config.vocab_size == TOKENIZER.get_vocab_size()
    assert config.eos_token_ids == (TOKENIZER.token_to_id(IM_END),)


@each_model
def test_the_weights_are_those_of_the_config(model: str):
    config = parse_config(read(model, "config.json"))
    shape = MODELS[model]
    attention = kind_of(config).mixer
    assert (config.hidden_size, config.num_layers, attention.num_heads) == (shape.hidden, shape.layers, shape.heads)
    assert {entry["dtype"] for entry in tensors(model).values()} == {"BF16"}
    hidden, queries = config.hidden_size, attention.num_heads * attention.head_dim
    keys, inner = attention.num_kv_heads * attention.head_dim, kind_of(config).mlp.size
    layer = {
        "self_attn.q_proj": [queries, hidden],
        "self_attn.k_proj": [keys, hidden],
        "self_attn.v_proj": [keys, hidden],
        "self_attn.o_proj": [hidden, queries],
        "self_attn.q_norm": [attention.head_dim],
        "self_attn.k_norm": [attention.head_dim],
        "mlp.gate_proj": [inner, hidden],
        "mlp.up_proj": [inner, hidden],
        "mlp.down_proj": [hidden, inner],
        "input_layernorm": [hidden],
        "post_attention_layernorm": [hidden],
    }
    expected = {"model.embed_tokens.weight": [config.vocab_size, hidden], "model.norm.weight": [hidden]}
    for index in range(config.num_layers):
        expected |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    assert {name: entry["shape"] for name, entry in tensors(model).items()} == expected


def test_generation_ends_at_both_ends():
    ends = read("target", "generation_config.json")["eos_token_id"]
    assert ends == [TOKENIZER.token_to_id(IM_END), TOKENIZER.token_to_id(END_OF_TEXT)]


def test_the_template_is_the_one_trained_with():
    config = read("target", "tokenizer_config.json")
    assert config["chat_template"] == CHAT_TEMPLATE
    assert config["eos_token"] == IM_END
    declared = {int(i): (entry["content"], entry["special"]) for i, entry in config["added_tokens_decoder"].items()}
    specials = {TOKENIZER.token_to_id(text): (text, True) for text in (END_OF_TEXT, IM_START, IM_END)}
    assert declared == specials | {TOKENIZER.token_to_id(text): (text, False) for text in TAGS}


def test_the_card_tells_the_true_numbers():
    card = (DEMO_FOLDER / "README.md").read_text(encoding="utf-8")
    for model in FOLDERS:
        assert f"{parameters(model):,}" in card
    assert f"{TOKENIZER.get_vocab_size():,}" in card
    assert "| over all | 2000 |" in card


@given(st.text(max_size=60))
def test_any_text_survives_the_tokenizer(text: str):
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text
