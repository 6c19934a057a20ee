"""Small checkpoints of quantised weights, each beside a plain one of the values that its weights stand for."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxinfer_kernels.cpu.packed import unpack
from safetensors.numpy import save_file

from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import LoadedModel, load_model, plan_model
from jaxinfer.models.weight import Weight

WEIGHTS = "model.safetensors"

Writer = Callable[[np.random.Generator, str, int, int], tuple[dict[str, np.ndarray], np.ndarray]]
"""writer(generator, module, rows, columns) -> tensors by name, and their values [rows, columns] float32."""

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    **{"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 64},
    **{"num_key_value_heads": 2, "vocab_size": 80, "max_position_embeddings": 64, "rms_norm_eps": 1e-5},
    "tie_word_embeddings": False,
}
MOE = {
    **LLAMA,
    "architectures": ["Qwen3MoeForCausalLM"],
    **{"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "norm_topk_prob": True},
}


class Checkpoint(NamedTuple):
    """A checkpoint of quantised weights: its config.json and tensors; and the tensors of the plain one."""

    config: dict[str, Any]
    tensors: dict[str, np.ndarray]
    plain: dict[str, np.ndarray]

    def write(self, folder: Path) -> Path:
        return write(folder, self.config, self.tensors)

    def write_plain(self, folder: Path) -> Path:
        config = {key: value for key, value in self.config.items() if key != "quantization_config"}
        return write(folder, config, self.plain)


def made(
    config: dict[str, Any],
    quantization: dict[str, Any],
    writer: Writer,
    *,
    left: tuple[str, ...] = ("lm_head",),
    seed=0,
) -> Checkpoint:
    """left: words that modules which stay plain have in their names."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    plain: dict[str, np.ndarray] = {}
    for name, shape in _shapes(config).items():
        module = name.removesuffix(".weight")
        if len(shape) != 2 or "embed" in name or any(word in module.split(".") for word in left):
            tensors[name] = plain[name] = (rng.standard_normal(shape) * 0.1).astype("f4")
        else:
            written, plain[name] = writer(rng, module, *shape)
            tensors |= written
    return Checkpoint({**config, "quantization_config": quantization}, tensors, plain)


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(config["num_hidden_layers"]):
        has_experts = "num_experts" in config and layer not in config.get("mlp_only_layers", ())
        own = _attention(config) | (_experts(config) if has_experts else _mlp(config))
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in own.items()}
    shapes["model.norm.weight"] = (hidden,)
    return shapes if config["tie_word_embeddings"] else {**shapes, "lm_head.weight": (vocabulary, hidden)}


def _attention(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, dim = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    found = {f"self_attn.{kind}_proj": (rows, hidden) for kind, rows in (("q", queries), ("k", keys), ("v", keys))}
    found["self_attn.o_proj"] = (hidden, queries)
    found |= {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
    normed = config["architectures"][0].startswith("Qwen3")
    return found | ({f"self_attn.{kind}_norm": (dim,) for kind in "qk"} if normed else {})


def _mlp(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, size = config["hidden_size"], config["intermediate_size"]
    return {"mlp.gate_proj": (size, hidden), "mlp.up_proj": (size, hidden), "mlp.down_proj": (hidden, size)}


def _experts(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, size, count = config["hidden_size"], config["moe_intermediate_size"], config["num_experts"]
    found: dict[str, tuple[int, ...]] = {"mlp.gate": (count, hidden)}
    for expert in range(count):
        found |= {f"mlp.experts.{expert}.{kind}_proj": (size, hidden) for kind in ("gate", "up")}
        found[f"mlp.experts.{expert}.down_proj"] = (hidden, size)
    return found


def write(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray], files: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    arrays = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    if files == 1:
        save_file(arrays, folder / WEIGHTS)
        return folder
    places = {name: f"part-{number % files}.safetensors" for number, name in enumerate(sorted(arrays))}
    for file in set(places.values()):
        save_file({name: array for name, array in arrays.items() if places[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def config_of(folder: Path) -> DecoderConfig:
    return parse_config(json.loads((folder / "config.json").read_text()))


def loaded(folder: Path, **options: Any) -> LoadedModel:
    return load_model(folder, config_of(folder), **{"dtype": jnp.float32, **options})


def values_of(model: LoadedModel) -> dict[str, np.ndarray]:
    """The values of its weights and its own head, float32, by what they are."""
    plan = plan_model(model.config, model.dtype)
    own_head = () if model.config.tie_word_embeddings else model.head
    leaves = iter([np.asarray(leaf) for leaf in (*model.weights, *own_head)])
    return {".".join(map(str, one.path)): _values(one, leaves) for one in (*plan.weights, *plan.head)}


def _values(weight: Weight, leaves: Iterator[np.ndarray]) -> np.ndarray:
    first = next(leaves)
    if weight.scheme is None:
        return first.astype(np.float32)
    first = (np.asarray(unpack(jnp.asarray(first))) if first.dtype == np.uint8 else first).astype(np.float32)
    sides = {part: next(leaves) for part in weight.scheme.parts[1:]}
    codes = first.reshape(*sides["scales"].shape, -1)
    if weight.scheme.zeros:
        codes = codes - sides["zeros"][..., None]
    scales = sides["scales"].astype(np.float32) * (sides["factors"] if weight.scheme.factors else 1)
    values = (codes * scales[..., None]).reshape(weight.shape)
    return _in_place(values, sides["order"]) if weight.scheme.ordered else values


def _in_place(values: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Values [..., K] whose column k is column order[k] of the result. order: [K], or [E, K] of experts."""
    found = np.empty_like(values)
    if order.ndim == 1:
        found[..., order] = values
        return found
    return np.stack([_in_place(one, own) for one, own in zip(values, order, strict=True)])


def assert_same_values(folder: Path, plain: Path, rtol: float = 0, **options: Any) -> LoadedModel:
    """Bit for bit, in float32, but for the rounding of factors that divide. Returns the quantised model."""
    model = loaded(folder, **options)
    found, wanted = values_of(model), values_of(loaded(plain))
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=rtol, atol=0, err_msg=name)
    return model
