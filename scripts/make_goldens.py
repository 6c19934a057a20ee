"""Makes tests/goldens: small random models of each family, and what transformers computes with them.

Needs torch and transformers (the `parity` extra). Run it again only when a family is added: the files are committed.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

TOKENS, PROMPT, NEW = 40, 9, 24
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 4.0,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.05, 1.1, 1.2],
    "long_factor": [1.2, 1.6, 3.0, 5.5],
}
_YARN_SCALES = {**_YARN, "mscale": 1.3, "mscale_all_dim": 0.7, "truncate": False}

# A family's seed is its place here: add new ones at the end.
# name: (architecture, what differs from SIZES, type of the stored weights)
FAMILIES: dict[str, tuple[str, dict[str, Any], torch.dtype]] = {
    "llama2": ("Llama", {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}, torch.float32),
    "llama3": ("Llama", {"rope_parameters": _LLAMA3, "tie_word_embeddings": True, "head_dim": 16}, torch.bfloat16),
    "llama_linear": (
        "Llama",
        {
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5},
            "attention_bias": True,
            "mlp_bias": True,
            "hidden_act": "gelu",
        },
        torch.float32,
    ),
    "mistral": ("Mistral", {"sliding_window": 9, "num_key_value_heads": 1}, torch.float16),
    "qwen2": (
        "Qwen2",
        {"tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
        torch.float32,
    ),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True, "head_dim": 24}, torch.float32),
    "qwen3_untied": ("Qwen3", {"head_dim": 8, "attention_bias": True}, torch.bfloat16),
    "llama_dynamic": (
        "Llama",
        {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
            "max_position_embeddings": 16,
        },
        torch.float32,
    ),
    "llama_yarn": ("Llama", {"rope_parameters": _YARN}, torch.float32),
    "qwen3_yarn": ("Qwen3", {"rope_parameters": _YARN_SCALES, "head_dim": 24}, torch.float32),
    # The prompt is longer than the original context: transformers, too, has the long factors from the first token on.
    "llama_longrope": (
        "Llama",
        {"rope_parameters": _LONGROPE, "original_max_position_embeddings": PROMPT - 1},
        torch.float32,
    ),
}
LOGITS_STD = 3.0
MIN_MARGIN = 1e-3


def make(name: str, folder: Path, seed: int | None = None) -> None:
    """Writes one family's folder: config.json, model.safetensors, golden.npz. seed: by default the family's own."""
    architecture, differences, dtype = FAMILIES[name]
    config_class = getattr(transformers, f"{architecture}Config")
    config = config_class(**{**SIZES, **differences}, attn_implementation="eager")
    model = getattr(transformers, f"{architecture}ForCausalLM")(config).eval()
    _draw(model, dtype, list(FAMILIES).index(name) if seed is None else seed)
    ids = np.random.default_rng(0).integers(3, config.vocab_size, TOKENS)
    logits, greedy = _logits(model, ids), _greedy(model, ids[:PROMPT])
    folder.mkdir(parents=True, exist_ok=True)
    saved = {**config.to_dict(), "architectures": [f"{architecture}ForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n")
    state = {k: v.to(dtype).contiguous() for k, v in model.state_dict().items()}
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    np.savez_compressed(folder / "golden.npz", token_ids=ids, logits=logits, prompt=ids[:PROMPT], greedy=greedy)
    print(name, sum(file.stat().st_size for file in folder.iterdir()), "bytes, logits' deviation", logits.std())


def _draw(model: Any, dtype: torch.dtype, seed: int) -> None:
    """Random weights that fit `dtype`, with logits of the wanted deviation."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 2:
                weight.copy_(noise * 1.2 * weight.shape[1] ** -0.5)
            else:
                weight.copy_(1 + 0.2 * noise if "norm" in name else 0.3 * noise)
        probe = torch.randint(3, model.config.vocab_size, (1, TOKENS), generator=generator)
        model.model.norm.weight.mul_(LOGITS_STD / model(probe).logits.std())
        for weight in model.parameters():
            weight.copy_(weight.to(dtype))


def _logits(model: Any, ids: np.ndarray) -> np.ndarray:
    """A prompt in one piece and the rest token by token: with `dynamic` rope a key depends on when it is computed."""
    cache = transformers.DynamicCache(config=model.config)
    pieces = [ids[:PROMPT], *ids[PROMPT:, None]]
    with torch.no_grad():
        found = [model(torch.tensor(piece)[None], past_key_values=cache, use_cache=True).logits[0] for piece in pieces]
    return torch.cat(found).float().numpy()


def _greedy(model: Any, prompt: np.ndarray) -> np.ndarray:
    """Greedy tokens by whole forwards; fails where the best two are too close for a fair comparison."""
    ids = list(prompt)
    for _ in range(NEW):
        best = np.sort(_logits(model, np.array(ids))[-1])
        assert best[-1] - best[-2] > MIN_MARGIN, "near-tie: change the seed"
        ids.append(int(_logits(model, np.array(ids))[-1].argmax()))
    return np.array(ids[len(prompt) :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", choices=[[], *FAMILIES], help="by default all")
    default = Path(__file__).resolve().parent.parent / "tests" / "goldens"
    parser.add_argument("--out", type=Path, default=default)
    args = parser.parse_args()
    for name in args.families or FAMILIES:
        make(name, args.out / name)


if __name__ == "__main__":
    main()
