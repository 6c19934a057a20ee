"""An estimate of what the largest programs of an engine take beside their arguments, from compiled ones."""

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import LayerKind
from jaxinfer.parallel.mesh_config import MeshConfig

_LOGITS = 6
"""Float32 logits of all scored rows that `sample` holds at once."""
_STATES, _INNER = 6, 2
"""Hidden states, and outputs of an MLP's first product, that a forward holds at once."""
_TILE = 128
"""Rows that each expert has at least in a grouped product."""
_LIBRARIES = 17 << 20
"""Of a GPU: what cuBLAS works in."""


def estimated_temporaries(
    config: DecoderConfig, mesh: MeshConfig, shapes: EngineShapes, platform: str, width: int
) -> int:
    """Bytes of one device, of the largest forward or sample: programs run one after another. config: over the mesh's
    parts. width: bytes of an activation."""
    return max(
        sample_temporaries(config, mesh, shapes.max_scored),
        forward_temporaries(config, mesh, shapes.max_num_batched_tokens, platform, width),
    )


def sample_temporaries(config: DecoderConfig, mesh: MeshConfig, scored: int) -> int:
    """Of a sample of so many rows."""
    return _LOGITS * scored * (config.table_shape[0] // mesh.shards("vocab")) * 4


def forward_temporaries(config: DecoderConfig, mesh: MeshConfig, tokens: int, platform: str, width: int) -> int:
    """Of a mixed or decode step of so many tokens."""
    kinds = dict.fromkeys(config.layers)
    numbers = max(tokens * _of_token(config, mesh, kind) + _of_tiles(config, mesh, kind) for kind in kinds)
    return int(numbers * width) + (_LIBRARIES if platform == "gpu" else 0)


def _of_token(config: DecoderConfig, mesh: MeshConfig, kind: LayerKind) -> float:
    attention, experts = kind.attention, kind.mlp.experts
    heads = (attention.num_heads + 2 * attention.num_kv_heads) / mesh.shards("kv_heads")
    if experts is None:
        inner = 2 * kind.mlp.size / mesh.shards("mlp")
    else:
        inner = experts.chosen * (2 * experts.size / mesh.shards("expert_mlp") + config.hidden_size)
    return _STATES * config.hidden_size + _INNER * inner + heads * attention.head_dim


def _of_tiles(config: DecoderConfig, mesh: MeshConfig, kind: LayerKind) -> float:
    """Rows that fill up tiles of experts: half a tile for each, on average."""
    experts = kind.mlp.experts
    if experts is None:
        return 0.0
    rows = _TILE / 2 * experts.slots / mesh.shards("expert")
    return rows * (2 * experts.size / mesh.shards("expert_mlp") + config.hidden_size)
