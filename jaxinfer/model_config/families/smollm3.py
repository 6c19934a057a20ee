"""SmolLM3: Llama whose every fourth layer knows no positions."""

from dataclasses import replace

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder import read_decoder, read_layer, read_layers, typed_windows, with_windows
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import LayerKind
from jaxinfer.model_config.rope import read_rope

_EVERY, _KV_HEADS, _THETA = 4, 4, 2e6


def parse(config: ConfigReader) -> DecoderConfig:
    """`no_rope_layers` has a 1 for each layer that knows positions, whatever its name says. With `use_sliding_window`
    the others have a window."""
    config.default("tie_word_embeddings", True)
    turned, bias = _turned(config), config.flag("attention_bias")
    config.get("max_window_layers")  # published, and read nowhere
    window = config.integer("sliding_window") if "sliding_window" in config else None
    window = window if config.flag("use_sliding_window") else None
    windows = typed_windows(config, window, [window is not None and not turns for turns in turned])
    rope = read_rope(config, theta=_THETA)
    attention = {"kv_heads": _KV_HEADS, "rope": rope.config, "qkv_bias": bias, "out_bias": bias}
    layer = read_layer(config, attention=attention, mlp={"bias": config.flag("mlp_bias")})
    pairs = zip(with_windows(layer, windows), turned, strict=True)
    layers = [layer if turns else _unturned(layer) for layer, turns in pairs]
    return read_decoder(config, layers, max_position_embeddings=rope.context)


def _turned(config: ConfigReader) -> list[bool]:
    """Return for each layer whether it has rotary embeddings."""
    layers, every = read_layers(config), config.integer("no_rope_layer_interval", _EVERY)
    if every < 1:
        raise config.error("no_rope_layer_interval", f"must be at least 1, not {every}")
    listed = config.get("no_rope_layers", [int((i + 1) % every != 0) for i in range(layers)])
    if not isinstance(listed, list) or len(listed) != layers or not all(turns in (0, 1) for turns in listed):
        raise config.error("no_rope_layers", f"must be {layers} numbers, 0 or 1")
    return [bool(turns) for turns in listed]


def _unturned(layer: LayerKind) -> LayerKind:
    return replace(layer, mixer=replace(layer.mixer, rope=None))


ARCHITECTURES = {"SmolLM3ForCausalLM": Architecture(parse, ("smollm3",))}
