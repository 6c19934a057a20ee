"""Tern, a made-up architecture: Mistral's layers, with fields and tensors named otherwise, and q, k and v in one."""

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import AttentionKind, LayerKind, NormKind
from jaxinfer.model_config.mlp_kind import MlpKind
from jaxinfer.model_config.rope_config import RopeConfig
from jaxinfer.model_config.tensor_names import Root, TensorNames

NAMES = TensorNames(
    roots=(Root(body="tern.", head="tern_head"),),
    embed="tokens",
    norm="last_norm",
    layers="blocks.",
    qkv="mix.qkv",
    out="mix.out",
    gate="widen.gate",
    up="widen.value",
    down="widen.narrow",
    input_norm="norm_1",
    mlp_norm="norm_2",
)


def parse(config: ConfigReader) -> DecoderConfig:
    """Layers of `local_layers` see the last `local_span` tokens, the others all."""
    depth, local, span = config.integer("depth"), config.get("local_layers", []), config.integer("local_span")
    norm = NormKind(eps=config.number("epsilon", 1e-6))
    attention = {
        "num_heads": config.integer("heads"),
        "num_kv_heads": config.integer("kv_heads"),
        "head_dim": config.integer("head_width"),
        "rope": RopeConfig(theta=config.number("theta", 10000.0)),
    }
    mlp = MlpKind(config.integer("mlp_width"))
    windows = [span if i in local else None for i in range(depth)]
    decoder = DecoderConfig(
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("width"),
        max_position_embeddings=config.integer("context"),
        layers=tuple(LayerKind(AttentionKind(**attention, window=window), mlp, norm) for window in windows),
        norm=norm,
        eos_token_ids=config.token_ids("eos_token_id"),
        names=NAMES,
    )
    config.finish()
    return decoder


TERN = Architecture(parse, checked_against="Mistral's logits, under other names")
