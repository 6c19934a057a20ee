"""OLMo 2 and 3: norms after attention and MLP only, q and k normed over all heads; OLMo 3 with windows."""

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder import (
    layers_by_window,
    read_decoder,
    read_layer,
    read_layers,
    read_norm,
    sliding_layers,
    typed_windows,
)
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import LayerKind
from jaxinfer.model_config.rope import read_rope, read_typed_ropes
from jaxinfer.model_config.rope_config import RopeConfig

_FULL, _SLIDING = "full_attention", "sliding_attention"
_EPS, _THETA, _WINDOW, _EVERY = 1e-5, 5e5, 4096, 4


def parse_olmo2(config: ConfigReader) -> DecoderConfig:
    """OLMo 2: every layer attends to all tokens."""
    layers = read_layers(config)
    sliding_layers(config, layers, [])
    return read_decoder(config, (_read(config, read_rope(config).config),) * layers)


def parse_olmo3(config: ConfigReader) -> DecoderConfig:
    """OLMo 3: three of four layers have a window, and a rotary embedding that is not stretched."""
    layers, theta = read_layers(config), config.number("rope_theta", _THETA)
    ropes = read_typed_ropes(config, {_FULL: theta, _SLIDING: theta})
    window = config.nullable_integer("sliding_window", _WINDOW)
    windows = typed_windows(config, window, [(i + 1) % _EVERY != 0 for i in range(layers)])
    full, sliding = (_read(config, ropes[kind].config) for kind in (_FULL, _SLIDING))
    context = ropes[_FULL].context
    return read_decoder(config, layers_by_window(full, sliding, windows), max_position_embeddings=context)


def _read(config: ConfigReader, rope: RopeConfig) -> LayerKind:
    config.default("rms_norm_eps", _EPS)
    norm, bias = read_norm(config, wide=True), config.flag("attention_bias")
    attention = {"qkv_bias": bias, "out_bias": bias, "rope": rope, "qk_norm": norm, "qk_norm_over": "projection"}
    return read_layer(config, attention=attention, norm=norm, norms="after")


ARCHITECTURES = {
    "Olmo2ForCausalLM": Architecture(parse_olmo2, ("olmo2",)),
    "Olmo3ForCausalLM": Architecture(parse_olmo3, ("olmo3",)),
}
