"""Ministral 3: Mistral with yarn, and queries that grow with their position."""

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder import read_decoder, read_layer, read_layers, typed_windows, with_windows
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import Temperature
from jaxinfer.model_config.rope import read_rope

_BETA = "llama_4_scaling_beta"
_OWN = ("max_position_embeddings", _BETA)
_HEAD_DIM, _KV_HEADS = 128, 8
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    _BETA: 0.1,
}


def parse(config: ConfigReader) -> DecoderConfig:
    """`rope_parameters` hold the temperature's two numbers too."""
    config.default("head_dim", _HEAD_DIM)
    config.default("rms_norm_eps", 1e-5)
    config.default("rope_parameters", config.get("rope_scaling") or _YARN)
    parameters = config.mapping("rope_parameters")
    assert parameters is not None
    beta = parameters.number(_BETA, 0.0)
    if beta < 0:
        raise parameters.error(_BETA, f"must be at least 0, not {beta}")
    rope = read_rope(config, own=_OWN)
    declared = config.integer("max_position_embeddings")
    original = parameters.integer("original_max_position_embeddings", declared)
    layer = read_layer(
        config,
        attention={
            "kv_heads": _KV_HEADS,
            "rope": rope.config,
            "temperature": Temperature(beta, original) if beta else None,
        },
    )
    window = config.integer("sliding_window") if "sliding_window" in config else None
    windows = typed_windows(config, window, [window is not None] * read_layers(config))
    return read_decoder(config, with_windows(layer, windows), max_position_embeddings=rope.context)


ARCHITECTURES = {"Ministral3ForCausalLM": Architecture(parse, ("ministral3",))}
