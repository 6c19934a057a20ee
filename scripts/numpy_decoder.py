"""Decoders in NumPy, in float64, after the published descriptions of models that transformers has no class for.

References to compare with, so they are plain and share no code with jaxinfer: one sequence at a time, whole attention
matrices, one expert after another. tests/models/test_numpy_decoder.py compares them with transformers where both can
compute the same.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

Shapes = dict[str, tuple[int, ...]]


class NumpyDecoder:
    """Llama; a family's class overrides what differs.

    config: a config.json. tensors: by their names in checkpoints; those of `shapes`.
    """

    model_type = "llama"
    embedding, norm, head = "model.embed_tokens", "model.norm", "lm_head"
    input_norm, mlp_norm = "input_layernorm", "post_attention_layernorm"
    out = "self_attn.o_proj"
    mlp_names = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]):
        self.config = config
        self.tensors = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}

    def logits(self, token_ids: np.ndarray) -> np.ndarray:
        """[T, vocabulary]: what comes after each token."""
        x = self.embed(token_ids)
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            x = x + self.residual_scale * self.attention(prefix, self.rms_norm(prefix + self.input_norm, x))
            x = x + self.residual_scale * self.mlp(layer, prefix, self.rms_norm(prefix + self.mlp_norm, x))
        return self.head_product(self.rms_norm(self.norm, x))

    def shapes(self) -> Shapes:
        """The shape of every tensor of a checkpoint."""
        config, hidden = self.config, self.hidden
        shapes: Shapes = {f"{self.embedding}.weight": (config["vocab_size"], hidden), f"{self.norm}.weight": (hidden,)}
        for layer in range(config["num_hidden_layers"]):
            own = {f"{norm}.weight": (hidden,) for norm in (self.input_norm, self.mlp_norm)}
            own |= self.attention_shapes() | self.mlp_shapes(layer)
            shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in own.items()}
        if not config["tie_word_embeddings"]:
            shapes[f"{self.head}.weight"] = (config["vocab_size"], hidden)
        return shapes

    @property
    def hidden(self) -> int:
        return self.config["hidden_size"]

    @property
    def heads(self) -> int:
        return self.config["num_attention_heads"]

    @property
    def kv_heads(self) -> int:
        return self.config["num_key_value_heads"]

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def attention_bias(self) -> bool:
        """The projections of q, k, v and the output have biases."""
        return self.config.get("attention_bias", False)

    @property
    def rope_theta(self) -> float:
        return self.config.get("rope_theta", 10000.0)

    @property
    def residual_scale(self) -> float:
        return 1.0

    def embed(self, token_ids: np.ndarray) -> np.ndarray:
        return self.tensors[f"{self.embedding}.weight"][token_ids]

    def head_product(self, x: np.ndarray) -> np.ndarray:
        tied = self.config["tie_word_embeddings"]
        return x @ self.tensors[f"{self.embedding if tied else self.head}.weight"].T

    def rms_norm(self, name: str, x: np.ndarray) -> np.ndarray:
        mean_square = np.mean(x**2, axis=-1, keepdims=True)
        return x / np.sqrt(mean_square + self.config["rms_norm_eps"]) * self.tensors[f"{name}.weight"]

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", 0.0)

    def attention(self, prefix: str, x: np.ndarray) -> np.ndarray:
        q, k, v = self.qkv(prefix, x)
        q, k = self.turn(q), self.turn(k)
        k, v = (np.repeat(part, self.heads // self.kv_heads, axis=1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(self.head_dim)
        scores = np.where(self.visible(len(x)), scores, -np.inf)
        mixed = np.einsum("hqk,khd->qhd", softmax(scores), v)
        return self.linear(prefix + self.out, mixed.reshape(len(x), -1))

    def qkv(self, prefix: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Queries, keys and values of all heads: [T, heads, head_dim] each."""
        parts = (self.linear(f"{prefix}self_attn.{name}_proj", x) for name in "qkv")
        q, k, v = (part.reshape(len(x), -1, self.head_dim) for part in parts)
        return q, k, v

    def attention_shapes(self) -> Shapes:
        width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        rows = {"q": width, "k": kv_width, "v": kv_width}
        shapes = [
            linear_shapes(f"self_attn.{name}_proj", n, self.hidden, self.attention_bias) for name, n in rows.items()
        ]
        return merged(*shapes, linear_shapes(self.out, self.hidden, width, self.attention_bias))

    def visible(self, length: int) -> np.ndarray:
        """[T, T]: whether a token (row) sees another (column)."""
        return np.tri(length, dtype=bool)

    def turn(self, x: np.ndarray) -> np.ndarray:
        """Rotary embedding of [T, heads, D]: channels i and i + D / 2 turn by position / base ** (2 * i / D)."""
        positions, dim = np.arange(len(x)), self.head_dim
        base = self.rope_theta * self.stretch(positions) ** (dim / (dim - 2))
        angles = positions[:, None] / base[:, None] ** (np.arange(0, dim, 2) / dim)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def stretch(self, positions: np.ndarray) -> np.ndarray:
        """[T]: how far dynamic rope is stretched when each token is computed, token by token: the text ends with it."""
        scaling, trained = self.config.get("rope_scaling"), self.config["max_position_embeddings"]
        if scaling is None:
            return np.ones(len(positions))
        if scaling["type"] != "dynamic":
            raise ValueError(f"rope_scaling: {scaling['type']} is not described here")
        return scaling["factor"] * np.maximum(positions + 1, trained) / trained - (scaling["factor"] - 1)

    def mlp(self, layer: int, prefix: str, x: np.ndarray) -> np.ndarray:
        return self.gated(prefix, self.mlp_names, x)

    def mlp_shapes(self, layer: int) -> Shapes:
        return self.gated_shapes("", self.mlp_names, self.config["intermediate_size"])

    def gated(self, prefix: str, names: tuple[str, str, str], x: np.ndarray) -> np.ndarray:
        gate, up, down = (prefix + name for name in names)
        gates = self.linear(gate, x)
        return self.linear(down, gates / (1 + np.exp(-gates)) * self.linear(up, x))

    def gated_shapes(self, prefix: str, names: tuple[str, str, str], size: int) -> Shapes:
        gate, up, down = (prefix + name for name in names)
        wide = (linear_shapes(name, size, self.hidden) for name in (gate, up))
        return merged(*wide, linear_shapes(down, self.hidden, size))

    def experts(self, prefix: str, names: tuple[str, str, str], x: np.ndarray, *, normalise: bool) -> np.ndarray:
        """Each token through the experts that the router scores best, weighed by softmax over all experts."""
        odds = softmax(self.linear(f"{prefix}gate", x))
        chosen = np.argsort(-odds, axis=-1)[:, : self.config["num_experts_per_tok"]]
        weights = np.take_along_axis(odds, chosen, axis=-1)
        if normalise:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        out = np.zeros_like(x)
        for expert in range(odds.shape[-1]):
            tokens, places = np.nonzero(chosen == expert)
            out[tokens] += weights[tokens, places, None] * self.gated(f"{prefix}experts.{expert}.", names, x[tokens])
        return out

    def experts_shapes(self, prefix: str, names: tuple[str, str, str], count: int, size: int) -> Shapes:
        each = (self.gated_shapes(f"{prefix}experts.{expert}.", names, size) for expert in range(count))
        return merged(linear_shapes(f"{prefix}gate", count, self.hidden), *each)


class InternLM(NumpyDecoder):
    """InternLM 1: as many KV heads as heads."""

    model_type = "internlm"

    @property
    def kv_heads(self) -> int:
        return self.heads

    @property
    def attention_bias(self) -> bool:
        return self.config["bias"]

    @property
    def rope_theta(self) -> float:
        return self.config["rotary"]["base"]

    def turn(self, x: np.ndarray) -> np.ndarray:
        """`rotary` of type dynamic is not written for more tokens, where every token turns all keys anew."""
        if len(x) > self.config["max_position_embeddings"]:
            raise ValueError(f"{len(x)} tokens are more than max_position_embeddings")
        return super().turn(x)


class InternLM2(NumpyDecoder):
    """One tensor holds, for each KV head, its queries, its key and its value."""

    model_type = "internlm2"
    embedding, head = "model.tok_embeddings", "output"
    input_norm, mlp_norm = "attention_norm", "ffn_norm"
    out = "attention.wo"
    mlp_names = ("feed_forward.w1", "feed_forward.w3", "feed_forward.w2")

    @property
    def attention_bias(self) -> bool:
        return self.config["bias"]

    def qkv(self, prefix: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        fused = self.linear(f"{prefix}attention.wqkv", x)
        fused = fused.reshape(len(x), self.kv_heads, self.heads // self.kv_heads + 2, self.head_dim)
        return fused[:, :, :-2].reshape(len(x), self.heads, self.head_dim), fused[:, :, -2], fused[:, :, -1]

    def attention_shapes(self) -> Shapes:
        rows = (self.heads + 2 * self.kv_heads) * self.head_dim
        return merged(
            linear_shapes("attention.wqkv", rows, self.hidden, self.attention_bias),
            linear_shapes(self.out, self.hidden, self.heads * self.head_dim, self.attention_bias),
        )


class MiniCPM(NumpyDecoder):
    """Multipliers on the embedding, on what a layer adds and on the logits; with `num_experts`, experts."""

    model_type = "minicpm"
    expert_names = ("w1", "w3", "w2")

    @property
    def residual_scale(self) -> float:
        return self.config["scale_depth"] / self.config["num_hidden_layers"] ** 0.5

    def embed(self, token_ids: np.ndarray) -> np.ndarray:
        return super().embed(token_ids) * self.config["scale_emb"]

    def head_product(self, x: np.ndarray) -> np.ndarray:
        return super().head_product(x / (self.hidden / self.config["dim_model_base"]))

    def mlp(self, layer: int, prefix: str, x: np.ndarray) -> np.ndarray:
        if not self.config.get("num_experts"):
            return super().mlp(layer, prefix, x)
        return self.experts(f"{prefix}mlp.", self.expert_names, x, normalise=True)

    def mlp_shapes(self, layer: int) -> Shapes:
        count, size = self.config.get("num_experts", 0), self.config["intermediate_size"]
        return self.experts_shapes("mlp.", self.expert_names, count, size) if count else super().mlp_shapes(layer)


class DeepseekMoe(NumpyDecoder):
    """From some layer on every so many layers have experts, and an MLP for all tokens beside them."""

    model_type = "deepseek"
    expert_names = ("gate_proj", "up_proj", "down_proj")

    def has_experts(self, layer: int) -> bool:
        return layer >= self.config["first_k_dense_replace"] and layer % self.config["moe_layer_freq"] == 0

    def mlp(self, layer: int, prefix: str, x: np.ndarray) -> np.ndarray:
        if not self.has_experts(layer):
            return super().mlp(layer, prefix, x)
        several = self.config["num_experts_per_tok"] > 1  # the weight of one stays what the router says
        normalise = self.config["norm_topk_prob"] and several
        out = self.experts(f"{prefix}mlp.", self.expert_names, x, normalise=normalise)
        if not self.config.get("n_shared_experts"):
            return out
        return out + self.gated(f"{prefix}mlp.shared_experts.", self.expert_names, x)

    def mlp_shapes(self, layer: int) -> Shapes:
        if not self.has_experts(layer):
            return super().mlp_shapes(layer)
        size, shared = self.config["moe_intermediate_size"], self.config.get("n_shared_experts")
        shapes = self.experts_shapes("mlp.", self.expert_names, self.config["n_routed_experts"], size)
        if not shared:
            return shapes
        return shapes | self.gated_shapes("mlp.shared_experts.", self.expert_names, size * shared)


DECODERS: dict[str, type[NumpyDecoder]] = {
    "InternLMForCausalLM": InternLM,
    "InternLM2ForCausalLM": InternLM2,
    "MiniCPMForCausalLM": MiniCPM,
    "DeepseekForCausalLM": DeepseekMoe,
}
"""Decoders by their architectures' names in config.json."""


def softmax(scores: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def linear_shapes(name: str, rows: int, columns: int, bias: bool = False) -> Shapes:
    """Return the shapes of a matrix and, if it has one, of its bias."""
    return {f"{name}.weight": (rows, columns), **({f"{name}.bias": (rows,)} if bias else {})}


def merged(*parts: Shapes) -> Shapes:
    """All of them in one."""
    return {name: shape for part in parts for name, shape in part.items()}
