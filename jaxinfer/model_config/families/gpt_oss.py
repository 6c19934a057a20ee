"""gpt-oss: experts with biases and a clamped gate, attention with sinks, every other layer with a window."""

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder import read_decoder, read_layer, read_layers, read_norm, typed_windows, with_windows
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.mlp_kind import Clamp, ExpertsKind, RouterKind
from jaxinfer.model_config.rope import read_rope
from jaxinfer.model_config.tensor_names import TensorNames

_NAMES = TensorNames(
    router="mlp.router",
    experts_gate_up="mlp.experts.gate_up_proj",
    experts_down="mlp.experts.down_proj",
    experts_columns_first=True,
    gate_up_rows="turns",
)
_ALPHA, _LIMIT = 1.702, 7.0
_HEAD_DIM, _KV_HEADS, _WINDOW = 64, 8, 128
_THETA = 150000.0
_YARN = {"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096}


def parse(config: ConfigReader) -> DecoderConfig:
    """Experts are in bfloat16, or in MXFP4 where there is a `quantization_config`, as in what was published."""
    config.default("head_dim", _HEAD_DIM)
    config.default("rms_norm_eps", 1e-5)
    config.only("attention_bias", True)
    config.only("hidden_act", "silu")
    config.integer("initial_context_length", 0)
    chosen = config.integer("num_experts_per_tok", config.integer("experts_per_token", 4))
    config.only("experts_per_token", chosen)
    experts = ExpertsKind(
        config.integer("num_local_experts"),
        chosen,
        config.integer("intermediate_size"),
        RouterKind("softmax_chosen", bias=True),
    )
    clamp = Clamp(config.number("swiglu_alpha", _ALPHA), config.number("swiglu_limit", _LIMIT))
    if "rope_parameters" not in config:
        config.default("rope_scaling", _YARN)
    rope = read_rope(config, theta=_THETA)
    layer = read_layer(
        config,
        attention={"kv_heads": _KV_HEADS, "rope": rope.config, "qkv_bias": True, "out_bias": True, "sinks": True},
        mlp={"bias": True, "clamp": clamp, "experts": experts},
        norm=read_norm(config, wide=True),
    )
    window = config.nullable_integer("sliding_window", _WINDOW)
    windows = typed_windows(config, window, [i % 2 == 0 for i in range(read_layers(config))])
    layers = with_windows(layer, windows)
    return read_decoder(config, layers, names=_NAMES, max_position_embeddings=rope.context)


ARCHITECTURES = {"GptOssForCausalLM": Architecture(parse, ("gpt_oss",))}
