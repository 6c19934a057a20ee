"""A decoder in float64 NumPy, of values that quantised weights stand for, and what an engine is compared with."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scripts.numpy_decoder import NumpyDecoder, softmax
from tests.quantization.rounding import e4m3_values, int8_values
from tests.runner.tiny import Judge

_EXPERT = ("gate_proj", "up_proj", "down_proj")
_TIE = 1.5e-7
"""How far float32 may be from an activation, as a share of its row's largest."""


class Reference(NumpyDecoder):
    """Llama, and Qwen3 with windows or experts.

    activations: what inputs of layers' matrices are rounded to, `int8` or `e4m3`; none: they stay. tied: for each token
    of the last call, whether some number that is rounded lies so near the middle of two codes that float32 may take the
    other one.
    """

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], activations: str = "none"):
        super().__init__(config, tensors)
        self.activations = activations
        self.tied = np.zeros(0, bool)

    @property
    def head_dim(self) -> int:
        return self.config["head_dim"]

    def logits(self, token_ids: np.ndarray) -> np.ndarray:
        self.tied = np.zeros(len(token_ids), bool)
        return super().logits(token_ids)

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return super().linear(name, x if self.activations == "none" else self._rounded(x))

    def _rounded(self, x: np.ndarray) -> np.ndarray:
        rounded = {"int8": int8_values, "e4m3": e4m3_values}[self.activations]
        most = np.abs(x).max(axis=-1, keepdims=True)
        edges = [rounded(np.append(x + shift * most, most, axis=-1))[..., :-1] for shift in (-_TIE, _TIE)]
        self.tied |= (np.abs(edges[1] - edges[0]) > 1e-3 * most).any(axis=-1)
        return rounded(x)

    def qkv(self, prefix: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        q, k, v = super().qkv(prefix, x)
        if f"{prefix}self_attn.q_norm.weight" not in self.tensors:
            return q, k, v
        return self.rms_norm(f"{prefix}self_attn.q_norm", q), self.rms_norm(f"{prefix}self_attn.k_norm", k), v

    def attention(self, prefix: str, x: np.ndarray) -> np.ndarray:
        layer = int(prefix.split(".")[2])
        kinds = self.config.get("layer_types", ())
        self.window = self.config["sliding_window"] if kinds and kinds[layer] == "sliding_attention" else None
        return super().attention(prefix, x)

    def visible(self, length: int) -> np.ndarray:
        seen = super().visible(length)
        return seen if self.window is None else seen & ~np.tri(length, k=-self.window, dtype=bool)

    def mlp(self, layer: int, prefix: str, x: np.ndarray) -> np.ndarray:
        """All tokens through all experts."""
        if "num_experts" not in self.config:
            return super().mlp(layer, prefix, x)
        odds = softmax(super().linear(f"{prefix}mlp.gate", x))
        least = np.sort(odds, axis=-1)[:, -self.config["num_experts_per_tok"], None]
        weights = np.where(odds >= least, odds, 0)
        weights = weights / weights.sum(axis=-1, keepdims=True)
        experts = (self.gated(f"{prefix}mlp.experts.{expert}.", _EXPERT, x) for expert in range(odds.shape[-1]))
        return np.sum([weights[:, expert, None] * out for expert, out in enumerate(experts)], axis=0)


class ReferenceJudge(Judge):
    """Says which tokens are right by a Reference."""

    def __init__(self, reference: Reference):
        self.reference = reference

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        return self.reference.logits(np.array(tokens))

    def sure(self, tokens: Sequence[int]) -> int:
        """How many of the first tokens are computed from no number that may be rounded either way."""
        self.logits(tokens)
        tied = self.reference.tied
        return int(tied.argmax()) if tied.any() else len(tokens)
