"""An estimate of what the largest programs of an engine take beside their arguments, from compiled ones."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import LayerKind
from jaxinfer.model_config.mlp_kind import ExpertsKind
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.runner.drafting.speculate import SAMPLED_AT_ONCE

_LOGITS, _FEW_LOGITS = 6.0, 3.5
"""Float32 logits of all scored rows that `sample` holds at once; the second of TPUs that share the vocabulary."""
_TILE = 128
"""Rows that each expert has at least in a grouped product."""
_LIBRARIES = 17 << 20
"""Bytes of cuBLAS's workspace on a GPU."""


class _Held(NamedTuple):
    """Arrays that a forward holds at once: hidden states, outputs of an MLP's first product, queries with keys and
    values, and the inputs and outputs of experts, each as a multiple."""

    states: float
    inner: float
    heads: float
    experts: float


_OF = {"gpu": _Held(2.2, 1.5, 1, 1.2), "tpu": _Held(6, 2, 1, 2), "cpu": _Held(6, 2, 1, 2)}
_LOOP_STATES = 2
"""Hidden states that live longest on a TPU whose layers are a loop, if the MLP's two products do not take more."""


def estimated_temporaries(
    config: DecoderConfig, mesh: MeshConfig, shapes: EngineShapes, platform: str, width: int, kv_bytes: Sequence[int]
) -> int:
    """Bytes of one device, of the largest forward or sample: programs run one after another. config: over the mesh's
    parts; of a stage its own. width: bytes of an activation. kv_bytes: of a token, an entry a KV group."""
    copied = shapes.copy_blocks * shapes.block_size * max(kv_bytes) if platform == "tpu" else 0
    return max(
        copied,  # before the first layer, from block to block
        sample_temporaries(config, mesh, max(shapes.max_scored, _checked(shapes)), platform) if config.ends else 0,
        forward_temporaries(config, mesh, shapes.max_num_batched_tokens, platform, width),
    )


def _checked(shapes: EngineShapes) -> int:
    """Positions that a step with drafts samples at once."""
    if shapes.drafting is None:
        return 0
    return min(shapes.max_num_seqs, max(SAMPLED_AT_ONCE // shapes.row_tokens, 1)) * shapes.row_tokens


def sample_temporaries(config: DecoderConfig, mesh: MeshConfig, scored: int, platform: str) -> int:
    """Estimate the temporary bytes of a sample of so many rows."""
    shards = mesh.shards("vocab")
    held = _FEW_LOGITS if platform == "tpu" and shards > 1 else _LOGITS
    return int(held * scored * (config.table_shape[0] // shards) * 4)


def forward_temporaries(config: DecoderConfig, mesh: MeshConfig, tokens: int, platform: str, width: int) -> int:
    """Estimate the temporary bytes of a mixed or decode step of so many tokens."""
    kinds = dict.fromkeys(config.layers)
    numbers = max(_of_layer(config, mesh, kind, tokens, platform) for kind in kinds)
    return int(numbers * width) + (_LIBRARIES if platform == "gpu" else 0)


def _of_layer(config: DecoderConfig, mesh: MeshConfig, kind: LayerKind, tokens: int, platform: str) -> float:
    """Numbers."""
    attention, experts = kind.mixer, kind.experts
    heads = (attention.num_heads + 2 * attention.num_kv_heads) / mesh.shards("kv_heads") * attention.head_dim
    inner = 0.0 if experts is not None else 2 * kind.mlp.size / mesh.shards("mlp")
    rows, tiles = _of_experts(config, mesh, experts)
    if platform == "tpu" and mesh.size > 1:
        states = _LOOP_STATES * config.hidden_size
        if experts is None:
            return tokens * max(2 * inner + heads, states)
        # What experts share is computed beside them.
        beside = 4 * experts.shared / mesh.shards("mlp") + states if experts.shared else 0
        return tokens * (rows + beside) + tiles
    held = _OF[platform]
    states = held.states * config.hidden_size + held.inner * inner + held.heads * heads
    return tokens * (states + held.experts * rows) + tiles


def _of_experts(config: DecoderConfig, mesh: MeshConfig, experts: ExpertsKind | None) -> tuple[float, float]:
    """Numbers of a token's rows, and of rows that fill up tiles: half a tile for each expert, on average."""
    if experts is None:
        return 0.0, 0.0
    row = 2 * experts.size / mesh.shards("expert_mlp") + config.hidden_size
    return experts.chosen * row, _TILE / 2 * experts.slots / mesh.shards("expert") * row
