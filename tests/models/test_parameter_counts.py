"""Sizes of real models, as planned from their config.json files, against those that were published."""

import json
import math

import jax.numpy as jnp
import pytest

from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import plan_model
from tests.material import material

# Billions, with the digits that were published; of models that see, the text part. MiniCPM's leave the embedding out.
WHOLE = {
    "Mixtral-8x7B-v0.1": "46.7",
    "aya-23": "8.03",
    "codellama_13b": "13.0",
    "codellama_34b": "33.7",
    "deepseek": "16.38",
    "gemma2_27b": "27.2",
    "gemma2_2b": "2.61",
    "gemma2_9b": "9.24",
    "gemma3-12b.shapes": "11.8",
    "gemma3_1b_it": "1.00",
    "gemma_2b": "2.51",
    "gpt-oss-20b.shapes": "20.9",
    "gpt2": "0.124",
    "gpt2_medium": "0.355",
    "internlm": "7.32",
    "internlm2": "7.74",
    "internlm2_5_7b": "7.74",
    "llama2_70b": "69.0",
    "llama2_7b": "6.74",
    "llama3_1_70b": "70.6",
    "llama3_1_8b": "8.03",
    "llama3_2_1b": "1.24",
    "llama3_2_3b": "3.21",
    "llava": "6.74",
    "ministral3_3b_2512": "3.4",
    "mistral_7b": "7.24",
    "mistral_7b_v03": "7.25",
    "olmo2_13b": "13.7",
    "olmo2_32b": "32.2",
    "olmo2_7b": "7.30",
    "phi-3_5": "3.82",
    "phi-4": "3.84",
    "qwen2.5_3b": "3.09",
    "qwen2_0_5b": "0.494",
    "qwen2_1_5b": "1.54",
    "qwen2_7b": "7.62",
    "qwen2moe": "14.3",
    "qwen3-30b-a3b.shapes": "30.5",
    "qwen3-32b.shapes": "32.8",
    "qwen3_0.6b": "0.596",
    "smollm2_135m": "0.135",
    "smollm2_360m": "0.362",
    "smollm_1_7b": "1.71",
    "stablelm": "2.80",
    "stablelm-2-zephyr-1_6b": "1.64",
    "starcoder2": "7.17",
    "tinyllama_1b_chat_v1.0": "1.10",
}
WITHOUT_EMBEDDING = {"minicpm_2b_sft_bf16": "2.44", "minicpm-moe-8x2b": "13.6"}


@pytest.mark.parametrize(("name", "billions"), [*WHOLE.items(), *WITHOUT_EMBEDDING.items()])
def test_published_size(name: str, billions: str):
    config = parse_config(json.loads(material("configs", f"{name}.json").read_text()))
    plan = plan_model(config, jnp.dtype(jnp.bfloat16))
    count = sum(math.prod(weight.shape) for weight in (*plan.weights, *plan.head))
    if name in WITHOUT_EMBEDDING:
        count -= config.vocab_size * config.hidden_size
    digits = len(billions.partition(".")[2])
    assert f"{count / 1e9:.{digits}f}" == billions
