"""StableLM: LayerNorms, heads of which a quarter turns."""

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder import read_decoder, read_head_dim, read_layer, read_layers
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import NormKind
from jaxinfer.model_config.rope import read_rope
from jaxinfer.model_config.tensor_names import TensorNames

_NAMES = TensorNames(q_norm="self_attn.q_layernorm.norms.", k_norm="self_attn.k_layernorm.norms.")
_PARTIAL, _KV_HEADS = 0.25, 32


def parse(config: ConfigReader) -> DecoderConfig:
    """Read the config. `use_parallel_residual` puts attention and MLP side by side; with `qk_layernorm` each head of q
    and k has a norm of its own."""
    eps = config.number("layer_norm_eps", 1e-5)
    rope = read_rope(config, head_dim=read_head_dim(config), partial=_PARTIAL)
    layer = read_layer(
        config,
        attention={
            "kv_heads": _KV_HEADS,
            "rope": rope.config,
            "qkv_bias": config.flag("use_qkv_bias"),
            "qk_norm": NormKind("layer", eps) if config.flag("qk_layernorm") else None,
            "qk_norm_over": "heads",
        },
        norm=NormKind("layer", eps, bias=True),
        parallel=config.flag("use_parallel_residual"),
    )
    layers = (layer,) * read_layers(config)
    return read_decoder(config, layers, names=_NAMES, max_position_embeddings=rope.context)


ARCHITECTURES = {"StableLmForCausalLM": Architecture(parse, ("stablelm",))}
