"""InternLM 1, 2 and 2.5: Llama with biases in attention; from 2 on q, k and v in one tensor, and names of its own."""

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import NUMPY_MODEL, Architecture
from jaxinfer.model_config.decoder import read_decoder, read_layer, read_layers
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.rope import Rope, read_rope
from jaxinfer.model_config.rope_config import RopeConfig
from jaxinfer.model_config.tensor_names import Root, TensorNames

_NAMES = TensorNames(
    roots=(Root(head="output"),),
    embed="tok_embeddings",
    qkv="attention.wqkv",
    qkv_rows="heads",
    out="attention.wo",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
    input_norm="attention_norm",
    mlp_norm="ffn_norm",
)


def parse(config: ConfigReader) -> DecoderConfig:
    """InternLM 1: the rotary embedding may be declared in `rotary`."""
    return _parse(config, _read_rotary(config), TensorNames())


def parse_internlm2(config: ConfigReader) -> DecoderConfig:
    """InternLM 2 and 2.5."""
    return _parse(config, read_rope(config), _NAMES)


def _parse(config: ConfigReader, rope: Rope, names: TensorNames) -> DecoderConfig:
    """`bias`, true by default, puts biases on q, k, v and the output projection."""
    bias = config.flag("bias", True)
    layer = read_layer(config, attention={"rope": rope.config, "qkv_bias": bias, "out_bias": bias})
    layers = (layer,) * read_layers(config)
    return read_decoder(config, layers, names=names, max_position_embeddings=rope.context)


def _read_rotary(config: ConfigReader) -> Rope:
    """Up to the declared context, `rotary` of type `dynamic` is the same as `origin`, and no longer one is offered.

    Beyond it, InternLM's code turns every earlier key anew for each token. Keys in a paged cache are turned once.
    """
    rotary = config.mapping("rotary")
    if rotary is None:
        return read_rope(config)
    theta = rotary.number("base")
    rotary.only("type", "origin", "dynamic")
    rotary.number("scaling_factor", 1.0)
    rotary.finish(frozenset())
    config.default("rope_theta", theta)
    rope = read_rope(config)
    if rope.config != RopeConfig(theta=theta):
        raise config.error("rotary", "contradicts rope_theta or rope_scaling; keep one of them")
    return rope


ARCHITECTURES = {
    "InternLMForCausalLM": Architecture(parse, ("internlm",), NUMPY_MODEL),
    "InternLM2ForCausalLM": Architecture(parse_internlm2, ("internlm2",), NUMPY_MODEL),
}
