"""The NumPy decoders that stand in for transformers, on goldens of transformers' own that their form can express."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes  # noqa: F401  from then on NumPy knows bfloat16
import numpy as np
import pytest
from numpy_decoder import DeepseekMoe, InternLM, InternLM2, MiniCPM, NumpyDecoder
from safetensors.numpy import load_file

from .goldens import GOLDENS

Tensors = Mapping[str, np.ndarray]


def golden_config(name: str, **changes: Any) -> dict[str, Any]:
    """A golden's config.json, its rotary embedding in the older spelling."""
    config = json.loads((GOLDENS / name / "config.json").read_text())
    rope = config.pop("rope_parameters")
    if rope["rope_type"] != "default":
        config["rope_scaling"] = {"type": rope["rope_type"], "factor": rope["factor"]}
    return {**config, "rope_theta": rope["rope_theta"], **changes}


def golden_tensors(name: str, rename: Callable[[str], str] = str) -> dict[str, np.ndarray]:
    tensors = load_file(GOLDENS / name / "model.safetensors")
    return {rename(key): tensor.astype(np.float64) for key, tensor in tensors.items()}


def assert_equals_golden(decoder: NumpyDecoder, name: str) -> None:
    golden = np.load(GOLDENS / name / "golden.npz")
    np.testing.assert_allclose(decoder.logits(golden["token_ids"]), golden["logits"], atol=2e-5)
    text = np.concatenate([golden["prompt"], golden["greedy"]])
    assert decoder.logits(text[:-1])[len(golden["prompt"]) - 1 :].argmax(axis=-1).tolist() == golden["greedy"].tolist()


@pytest.mark.parametrize("name", ["llama2", "llama_dynamic"])
def test_llama(name: str):
    assert_equals_golden(NumpyDecoder(golden_config(name), golden_tensors(name)), name)


def test_internlm():
    config = golden_config("llama2", bias=False, rotary={"base": 10000, "type": "dynamic"})
    del config["rope_theta"]
    assert_equals_golden(InternLM(config, golden_tensors("llama2")), "llama2")
    short = InternLM({**config, "max_position_embeddings": 8}, golden_tensors("llama2"))
    with pytest.raises(ValueError, match="9 tokens are more than max_position_embeddings"):
        short.logits(np.arange(3, 12))


def test_internlm2_with_queries_keys_and_values_in_one_tensor():
    names = {
        "embed_tokens": "tok_embeddings",
        "lm_head": "output",
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
    }

    def rename(name: str) -> str:
        for old, new in names.items():
            name = name.replace(old, new)
        return name

    config, tensors = golden_config("llama_dynamic", bias=False), golden_tensors("llama_dynamic", rename)
    for layer in range(config["num_hidden_layers"]):
        parts = [tensors.pop(f"model.layers.{layer}.self_attn.{part}_proj.weight") for part in "qkv"]
        q, k, v = (part.reshape(config["num_key_value_heads"], -1, config["hidden_size"]) for part in parts)
        fused = np.concatenate([q, k, v], axis=1).reshape(-1, config["hidden_size"])
        tensors[f"model.layers.{layer}.attention.wqkv.weight"] = fused
    decoder = InternLM2(config, tensors)
    assert_has_shapes(decoder)
    assert_equals_golden(decoder, "llama_dynamic")


def test_minicpm_undoes_multipliers_that_weights_were_divided_by():
    config = golden_config("llama2", scale_emb=3.0, scale_depth=1.4, dim_model_base=8)
    residual, logits = 1.4 / config["num_hidden_layers"] ** 0.5, 8 / config["hidden_size"]
    divisors = {"embed_tokens": 3.0, "o_proj": residual, "down_proj": residual, "lm_head": logits}

    def divided(name: str, tensor: np.ndarray) -> np.ndarray:
        return tensor / next((divisor for part, divisor in divisors.items() if part in name), 1.0)

    tensors = {name: divided(name, tensor) for name, tensor in golden_tensors("llama2").items()}
    assert_equals_golden(MiniCPM(config, tensors), "llama2")


class WindowedMiniCPM(MiniCPM):
    def visible(self, length: int) -> np.ndarray:
        return super().visible(length) & ~np.tri(length, k=-self.config["sliding_window"], dtype=bool)


def test_minicpm_moe_on_mixtral():
    config = golden_config("mixtral")
    ones = {"scale_emb": 1, "scale_depth": config["num_hidden_layers"] ** 0.5, "dim_model_base": config["hidden_size"]}
    tensors = golden_tensors("mixtral", lambda name: name.replace("block_sparse_moe", "mlp"))
    decoder = WindowedMiniCPM({**config, **ones, "num_experts": config["num_local_experts"]}, tensors)
    assert_has_shapes(decoder)
    assert_equals_golden(decoder, "mixtral")


class GatedDeepseekMoe(DeepseekMoe):
    """Qwen2-MoE multiplies what its shared expert gives by a sigmoid."""

    def gated(self, prefix: str, names: tuple[str, str, str], x: np.ndarray) -> np.ndarray:
        out = super().gated(prefix, names, x)
        if not prefix.endswith("shared_experts."):
            return out
        router = prefix.replace("shared_experts.", "shared_expert_gate")
        return out / (1 + np.exp(-self.linear(router, x)))


def test_deepseek_moe_on_qwen2_moe():
    config = golden_config("qwen2_moe", first_k_dense_replace=1, moe_layer_freq=1, n_shared_experts=1)
    tensors = golden_tensors("qwen2_moe", lambda name: name.replace("shared_expert.", "shared_experts."))
    assert_equals_golden(GatedDeepseekMoe(config, tensors), "qwen2_moe")


def assert_has_shapes(decoder: NumpyDecoder) -> None:
    assert decoder.shapes() == {name: tensor.shape for name, tensor in decoder.tensors.items()}
