"""Every config.json of the shared material: it loads, or is refused with the reason that is written here."""

import json
from pathlib import Path

import pytest

from jaxinfer.errors import UnknownArchitectureError
from jaxinfer.model_config.registry import known_architectures, parse_config
from scripts.config_table import row
from tests.material import material

UNKNOWN = "; `jaxinfer models` lists those that are"
LATENT = ": its attention is latent (MLA), which is not supported yet"
REFUSED = {
    "baichuan": f"'BaichuanForCausalLM' is not supported{UNKNOWN}",
    "chatglm": "'ChatGLMModel' is not supported: its successors are supported: GlmForCausalLM, Glm4ForCausalLM",
    "deepseek2-16b.shapes": f"'DeepseekV2ForCausalLM' is not supported{LATENT}",
    "deepseek_v2_lite": f"'DeepseekV2ForCausalLM' is not supported{LATENT}",
    "gpt_bigcode": "'GPTBigCodeForCausalLM' is not supported: its successor is supported: Starcoder2ForCausalLM",
    "gpt_j": f"'GPTJForCausalLM' is not supported{UNKNOWN}",
    "orion": f"'OrionForCausalLM' is not supported{UNKNOWN}",
    "phi-1_5": "'PhiForCausalLM' is not supported: its successor is supported: Phi3ForCausalLM",
    "phi-2": "'PhiForCausalLM' is not supported: its successor is supported: Phi3ForCausalLM",
    "qwen": "'QWenLMHeadModel' is not supported: its successors are supported: Qwen2ForCausalLM, Qwen3ForCausalLM",
    "rwkv5_3b": "'RwkvForCausalLM' is not supported: its layers keep a state, which is not supported yet",
    "snowflake-arctic-embed-m": "'BertModel' is not supported: it has an encoder; only decoders are served",
}


def configs() -> list[Path]:
    return sorted(material("configs").glob("*.json"))


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason(name: str) -> None:
    raw = json.loads(material("configs", f"{name}.json").read_text())
    with pytest.raises(UnknownArchitectureError) as error:
        parse_config(raw)
    assert str(error.value) == f"config.json: architectures: {REFUSED[name]}"


def test_all_others_load() -> None:
    loaded = [path for path in configs() if path.stem not in REFUSED]
    assert len(loaded) >= 60
    for path in loaded:
        raw = json.loads(path.read_text())
        text = raw.get("text_config", raw)
        config = parse_config(raw)
        assert config.vocab_size == text["vocab_size"], path.name
        # LLaVA's text part leaves out what Llama's first model had.
        assert config.num_layers == text.get("num_hidden_layers", text.get("n_layer", 32)), path.name


def test_successors_are_supported() -> None:
    reasons = [reason for reason in REFUSED.values() if "successor" in reason]
    assert len(reasons) == 5
    for reason in reasons:
        assert set(reason.split(": ")[-1].split(", ")) <= set(known_architectures())


@pytest.mark.long
def test_programs_of_all_others_are_traced() -> None:
    for path in configs():
        if path.stem not in REFUSED:
            found = row(path)
            assert not found.refused, path.name
            assert found.traced == ("decode", "mixed", "sample"), path.name
