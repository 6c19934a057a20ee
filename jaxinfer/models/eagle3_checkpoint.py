"""EAGLE-3 heads in safetensors, as SafeAILab/EAGLE, SpecForge and speculators write them."""

from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxinfer.checkpoint.formats.parts.stored import TensorPart
from jaxinfer.checkpoint.safetensors import Checkpoint, Unused
from jaxinfer.checkpoint.sources import Padded, Source, Tensor
from jaxinfer.errors import ModelError
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.eagle3 import Eagle3Config, parse_eagle3
from jaxinfer.model_config.model_files import read_config
from jaxinfer.models import weight
from jaxinfer.models.eagle3 import Eagle3Model, assemble, plan_eagle3
from jaxinfer.models.huggingface import LayerTensors
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.rules import DEFAULT_RULES, ShardingRules

_LAYERS = ("midlayer.", "layers.0.")
"""Prefixes that names of the layer's tensors may have."""
_EMBED, _D2T, _T2D = "embed_tokens.weight", "d2t", "t2d"


def declared_eagle3(folder: Path, target: DecoderConfig) -> Eagle3Config:
    """The head that a folder declares, to draft for a target. Raises ModelError that names folder and field, and where
    it has no embedding and the target's is of another width."""
    try:
        config = parse_eagle3(read_config(folder), target)
        with Checkpoint(folder) as checkpoint:
            config = replace(config, own_embedding=_EMBED in checkpoint.names)
        if not config.own_embedding and config.decoder.hidden_size != target.hidden_size:
            widths = f"hidden_size {config.decoder.hidden_size} differs from the target's, {target.hidden_size}"
            raise ModelError(f"{_EMBED} is missing, and {widths}")
    except ModelError as error:
        raise error if str(folder) in str(error) else ModelError(f"{folder}: {error}") from None
    return config


def load_eagle3(
    folder: Path,
    config: Eagle3Config,
    *,
    dtype: jnp.dtype,
    mesh: Mesh | None = None,
    rules: ShardingRules = DEFAULT_RULES,
) -> Eagle3Model:
    """Reads a head, each weight straight to its shards. Raises ModelError that names tensor and file for one that is
    missing, extra, of a wrong shape or type, and for a mapping that leaves the target's vocabulary."""
    plan, mesh = plan_eagle3(config, jnp.dtype(dtype)), mesh or make_mesh()
    every = (*plan.weights, plan.table)
    with Checkpoint(folder) as checkpoint:
        tensors = HeadTensors(config, _layer_prefix(checkpoint))
        sources = [tensors.source(str(one.path[-1])) for one in every]
        mapping = _mapping(config, checkpoint)
        checkpoint.check([*(tensor for one in sources for tensor in one.tensors), *mapping], Unused())
        columns = _columns(config, checkpoint, mapping)
        read = zip(every, sources, strict=True)
        arrays = [leaf for one, source in read for leaf in weight.load(one, [[source]], checkpoint, rules, mesh)]
    return assemble(plan, arrays, columns, dtype, mesh, rules)


class HeadTensors(LayerTensors):
    """The sources of a head's weights, by the names that they have in `Eagle3Head`."""

    def __init__(self, config: Eagle3Config, layer: str = _LAYERS[0]):
        super().__init__(config.decoder, 0)
        self._eagle, self._prefix = config, layer

    def source(self, name: str, part: TensorPart = "weight") -> Source:
        decoder, hidden = self._eagle.decoder, self._eagle.decoder.hidden_size
        rows = decoder.table_shape[0], replace(decoder, vocab_size=self._eagle.vocab_size).table_shape[0]
        singles: dict[str, Source] = {
            "fc": Tensor("fc.weight", (hidden, len(self._eagle.layers) * self._eagle.target_hidden)),
            "norm": Tensor("norm.weight", (hidden,)),
            "table": _padded(Tensor("lm_head.weight", (decoder.vocab_size, hidden)), rows[0]),
            "embed": _padded(Tensor(_EMBED, (self._eagle.vocab_size, hidden)), rows[1]),
            "embed_norm": self._tensor("input_layernorm.weight", hidden),
            "hidden_norm": self._tensor("hidden_norm.weight", hidden),
        }
        return singles.get(name) or super().source(name, part)

    def _qkv_columns(self) -> int:
        return 2 * self._hidden


def _padded(table: Tensor, rows: int) -> Source:
    """A table with the rows that no token has."""
    return table if rows == table.shape[0] else Padded(table, 0, rows)


def _layer_prefix(checkpoint: Checkpoint) -> str:
    fitting = (prefix for prefix in _LAYERS if any(name.startswith(prefix) for name in checkpoint.names))
    return next(fitting, _LAYERS[0])


def _mapping(config: Eagle3Config, checkpoint: Checkpoint) -> list[Tensor]:
    """d2t, which may be missing where the draft vocabulary is the whole one, and t2d where it is there."""
    drafts = config.decoder.vocab_size
    d2t, t2d = Tensor(_D2T, (drafts,), ("I64", "I32")), Tensor(_T2D, (config.vocab_size,), ("BOOL", "U8"))
    needed = [d2t] if _D2T in checkpoint.names or drafts < config.vocab_size else []
    return needed + ([t2d] if _T2D in checkpoint.names else [])


def _columns(config: Eagle3Config, checkpoint: Checkpoint, mapping: list[Tensor]) -> np.ndarray:
    """The target's id of each draft id, int64 [drafts]: d2t holds the differences."""
    own = np.arange(config.decoder.vocab_size)
    if _D2T not in [tensor.name for tensor in mapping]:
        return own
    columns = own + checkpoint.read(_D2T, ()).astype(np.int64)
    if columns.min() < 0 or columns.max() >= config.vocab_size:
        raise checkpoint.error(_D2T, f"maps drafts to ids beyond the target's vocabulary of {config.vocab_size}")
    if len(np.unique(columns)) < len(columns):
        raise checkpoint.error(_D2T, "maps two drafts to the same id")
    return columns
