"""Command-R and Command-R7B (Aya among them): attention and MLP side by side after one LayerNorm."""

from dataclasses import replace

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder import layers_by_window, read_decoder, read_layer, read_layers, typed_windows
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import LayerKind, NormKind
from jaxinfer.model_config.rope import read_rope
from jaxinfer.model_config.rope_config import RopeConfig
from jaxinfer.model_config.tensor_names import TensorNames

_NAMES = TensorNames(interleaved_rope=True)
_LOGIT_SCALE, _THETA, _WINDOW, _EVERY = 0.0625, 5e5, 4096, 4


def parse_cohere(config: ConfigReader) -> DecoderConfig:
    """Command-R, Aya 23: q and k may be normed, each head with a weight of its own.

    Command-R was trained on `model_max_length` tokens; its `max_position_embeddings` is smaller.
    """
    rope = read_rope(config, theta=_THETA)
    layers = (_read(config, rope.config, qk_norm=config.flag("use_qk_norm")),) * read_layers(config)
    return _decoder(config, layers, context=max(rope.context, config.integer("model_max_length", rope.context)))


def parse_cohere2(config: ConfigReader) -> DecoderConfig:
    """Command-R7B, Command A: three of four layers have a window, and only those know positions."""
    for name, wanted in (
        ("order_of_interleaved_layers", "local_attn_first"),
        ("position_embedding_type", "rope_gptj"),
        ("rotary_pct", 1.0),
        ("use_embedding_sharing", True),
        ("use_gated_activation", True),
        ("use_parallel_block", True),
        ("use_qk_norm", False),
    ):
        config.only(name, wanted)
    config.get("use_parallel_embedding")  # of training
    every = config.integer("sliding_window_pattern", config.integer("layer_switch", _EVERY))
    if every < 1:
        raise config.error("sliding_window_pattern", f"must be at least 1, not {every}")
    config.only("layer_switch", every)
    window = config.nullable_integer("sliding_window", _WINDOW)
    windows = typed_windows(config, window, [(i + 1) % every != 0 for i in range(read_layers(config))])
    rope = read_rope(config)
    sliding = _read(config, rope.config, qk_norm=False)
    full = replace(sliding, mixer=replace(sliding.mixer, rope=None))
    return _decoder(config, layers_by_window(full, sliding, windows), context=rope.context)


def _read(config: ConfigReader, rope: RopeConfig, *, qk_norm: bool) -> LayerKind:
    norm, bias = NormKind("layer", config.number("layer_norm_eps", 1e-5)), config.flag("attention_bias")
    return read_layer(
        config,
        attention={
            "rope": rope,
            "qkv_bias": bias,
            "out_bias": bias,
            "qk_norm": norm if qk_norm else None,
            "qk_norm_over": "heads",
        },
        norm=norm,
        parallel=True,
    )


def _decoder(config: ConfigReader, layers: tuple[LayerKind, ...], *, context: int) -> DecoderConfig:
    config.default("tie_word_embeddings", True)
    scale = config.number("logit_scale", _LOGIT_SCALE)
    return read_decoder(config, layers, names=_NAMES, logits_scale=scale, max_position_embeddings=context)


ARCHITECTURES = {
    "CohereForCausalLM": Architecture(parse_cohere, ("cohere",)),
    "Cohere2ForCausalLM": Architecture(parse_cohere2, ("cohere2",)),
}
