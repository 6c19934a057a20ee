"""Names and shapes of a decoder's weights in Hugging Face checkpoints: one table for all families."""

from collections.abc import Callable, Sequence

from jaxinfer.checkpoint.sources import Source, Tensor
from jaxinfer.layers.mlp import gate_up_block
from jaxinfer.model_config.decoder_config import DecoderConfig

EMBED = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

Path = tuple[str | int, ...]


def ignored_tensors(config: DecoderConfig) -> frozenset[str]:
    """Tensors that a checkpoint may hold though the model has no use for them."""
    return frozenset({HEAD}) if config.tie_word_embeddings else frozenset()


def weight_sources(config: DecoderConfig, path: Path, layers: Sequence[int] | None) -> list[Source]:
    """The sources of the weight at `path` of a Decoder or Head: one, or for weights of layers one for each of them."""
    name = str(path[-1])
    if layers is None:
        return [_single(config, name)]
    return [_LAYER_WEIGHTS[name](config, f"model.layers.{layer}.") for layer in layers]


def _single(config: DecoderConfig, name: str) -> Source:
    table = ((config.vocab_size,), (config.hidden_size,))
    singles = {
        "embed": Tensor(EMBED, table),
        "table": Tensor(HEAD, table),
        "norm": Tensor("model.norm.weight", ((config.hidden_size,),)),
    }
    return Source((singles[name],))


def _qkv(config: DecoderConfig, prefix: str, ending: str, columns: tuple[tuple[int, ...], ...]) -> Source:
    heads, dim = config.num_kv_heads, config.head_dim
    rows = {"q": (heads, config.group_size, dim), "k": (heads, 1, dim), "v": (heads, 1, dim)}
    tensors = (Tensor(f"{prefix}self_attn.{kind}_proj.{ending}", (view, *columns)) for kind, view in rows.items())
    return Source(tuple(tensors), axis=1)


def _gate_up(config: DecoderConfig, prefix: str, ending: str, columns: tuple[tuple[int, ...], ...]) -> Source:
    block = gate_up_block(config.intermediate_size)
    rows = (config.intermediate_size // block, 1, block)
    tensors = (Tensor(f"{prefix}mlp.{kind}_proj.{ending}", (rows, *columns)) for kind in ("gate", "up"))
    return Source(tuple(tensors), axis=1)


def _out(config: DecoderConfig, prefix: str) -> Source:
    heads = config.num_kv_heads * config.group_size * config.head_dim
    return Source((Tensor(f"{prefix}self_attn.o_proj.weight", ((config.hidden_size,), (heads,))),))


def _down(config: DecoderConfig, prefix: str) -> Source:
    return Source((Tensor(f"{prefix}mlp.down_proj.weight", ((config.hidden_size,), (config.intermediate_size,))),))


def _vector(name: str, size: Callable[[DecoderConfig], int]) -> Callable[[DecoderConfig, str], Source]:
    return lambda config, prefix: Source((Tensor(prefix + name, ((size(config),),)),))


def _hidden(config: DecoderConfig) -> int:
    return config.hidden_size


def _head_dim(config: DecoderConfig) -> int:
    return config.head_dim


_LAYER_WEIGHTS: dict[str, Callable[[DecoderConfig, str], Source]] = {
    "qkv": lambda config, prefix: _qkv(config, prefix, "weight", ((config.hidden_size,),)),
    "qkv_bias": lambda config, prefix: _qkv(config, prefix, "bias", ()),
    "out": _out,
    "gate_up": lambda config, prefix: _gate_up(config, prefix, "weight", ((config.hidden_size,),)),
    "gate_up_bias": lambda config, prefix: _gate_up(config, prefix, "bias", ()),
    "down": _down,
    "out_bias": _vector("self_attn.o_proj.bias", _hidden),
    "down_bias": _vector("mlp.down_proj.bias", _hidden),
    "input_norm": _vector("input_layernorm.weight", _hidden),
    "mlp_norm": _vector("post_attention_layernorm.weight", _hidden),
    "q_norm": _vector("self_attn.q_norm.weight", _head_dim),
    "k_norm": _vector("self_attn.k_norm.weight", _head_dim),
}
