"""An EAGLE-3 head in NumPy, by the tensors of a folder: written from arXiv:2503.01840 and vLLM's names alone."""

from typing import Any

import numpy as np

Tensors = dict[str, np.ndarray]


class NumpyEagle3:
    """Over one text at once, in float64. tensors: with `embed_tokens.weight`. raw: its config.json."""

    def __init__(self, raw: dict[str, Any], tensors: Tensors):
        self.raw, self.tensors = raw, {name: np.asarray(x, np.float64) for name, x in tensors.items()}

    def features(self, hidden: list[np.ndarray]) -> np.ndarray:
        """The target's hidden states of three layers, [T, D] each, to [T, d]."""
        return np.concatenate(hidden, axis=1) @ self.tensors["fc.weight"].T

    def run(self, hidden: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """hidden [T, d] of positions 0, 1, …; tokens [T], those after them. The head's hidden states, [T, d]."""
        embedded = self._norm("midlayer.input_layernorm", self.tensors["embed_tokens.weight"][tokens])
        normed = self._norm("midlayer.hidden_norm", hidden)
        attended = self._attention(np.concatenate([embedded, normed], axis=1))
        x = (normed if self.raw.get("norm_before_residual") else hidden) + attended
        y = self._norm("midlayer.post_attention_layernorm", x)
        gate, up = self._product("midlayer.mlp.gate_proj", y), self._product("midlayer.mlp.up_proj", y)
        return x + self._product("midlayer.mlp.down_proj", gate / (1 + np.exp(-gate)) * up)

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """[S, d] to [S, draft vocabulary]."""
        return self._product("lm_head", self._norm("norm", hidden))

    def chain(self, features: np.ndarray, tokens: list[int], count: int) -> list[int]:
        """The likeliest drafts after a text, greedily. features: of all tokens but the last one."""
        hidden, drafts, ids = features, [], list(tokens)
        for _ in range(count):
            out = self.run(hidden, np.array(ids[1:]))[-1:]
            draft = int(np.argmax(self.logits(out)[0]))
            ids.append(draft + int(self.tensors["d2t"][draft]))
            drafts.append(ids[-1])
            hidden = np.concatenate([hidden, out])
        return drafts

    def _attention(self, x: np.ndarray) -> np.ndarray:
        dim = self.raw["head_dim"]
        q, k, v = (self._product(f"midlayer.self_attn.{n}_proj", x).reshape(len(x), -1, dim) for n in "qkv")
        q, k = self._turned(q), self._turned(k)
        k, v = (np.repeat(one, q.shape[1] // one.shape[1], axis=1) for one in (k, v))
        scores = np.einsum("thd,shd->hts", q, k) * dim**-0.5
        scores = np.where(np.tril(np.ones((len(x), len(x)), bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out = np.einsum("hts,shd->thd", weights, v).reshape(len(x), -1)
        return self._product("midlayer.self_attn.o_proj", out)

    def _turned(self, x: np.ndarray) -> np.ndarray:
        half = x.shape[-1] // 2
        speeds = self.raw["rope_theta"] ** -(np.arange(half) / half)
        angles = np.arange(len(x))[:, None, None] * speeds
        first, second = x[..., :half], x[..., half:]
        turned = (first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles))
        return np.concatenate(turned, axis=-1)

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.raw["rms_norm_eps"])
        return x / scale * self.tensors[f"{name}.weight"]

    def _product(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.tensors[f"{name}.weight"].T
