"""A checkpoint that holds a head of its own though its config.json ties the head to the embedding."""

import logging
from dataclasses import replace

import numpy as np

from jaxinfer.checkpoint.formats.format import TensorFormat
from jaxinfer.checkpoint.safetensors import Checkpoint
from jaxinfer.checkpoint.sources import Tensor
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.models.huggingface import embedding_table, head_table

log = logging.getLogger(__name__)

_COMPARED_AT_ONCE = 8 * 2**20  # elements of each tensor, so that no second copy of a large one is held
_QUANTISED = ("qweight", "weight_packed", "weight_scale", "weight_scale_inv")


def with_own_head(config: DecoderConfig, checkpoint: Checkpoint, dtype: np.dtype) -> DecoderConfig:
    """`config`, untied where the checkpoint's head is quantised or differs from its embedding; logs a warning then.

    transformers, too, uses both weights then and ties those that are equal. They are compared in `dtype`, in which
    they would be used. Raises ModelError where the head has another shape than the embedding or cannot be read, and
    where it is quantised in no form that config.json gives it.
    """
    embed, head = embedding_table(config), head_table(config)
    if not config.tie_word_embeddings:
        return config
    form = None if config.declared is None else config.declared.of_head()
    if form is not None and (quantised := _found(form, config, checkpoint)) is not None:
        _warn(embed.name, quantised)
        tables = config.tables._replace(table=form.scheme(config.hidden_size))
        return replace(config, tie_word_embeddings=False, tables=tables)
    if form is None:
        _refuse_quantised(config, checkpoint)
    if head.name not in checkpoint.names:
        return config
    for tensor in (embed, head):
        checkpoint.check_tensor(tensor)
    if _equal(checkpoint, embed, head, dtype):
        return config
    _warn(embed.name, head.name)
    return replace(config, tie_word_embeddings=False)


def _refuse_quantised(config: DecoderConfig, checkpoint: Checkpoint) -> None:
    names = (f"{config.names.head}.{part}" for part in _QUANTISED)
    if found := next((name for name in names if name in checkpoint.names), None):
        raise checkpoint.error(
            found, "is of a quantised head, which config.json ties to the embedding and says to be in no such form"
        )


def _warn(embed: str, head: str) -> None:
    """Warn that two tensors differ, given their names."""
    log.warning(
        "config.json: tie_word_embeddings is true, but %s and %s differ: both are used. If that is right, set it to "
        "false; else remove %s from the checkpoint",
        *(embed, head, head),
    )


def _found(form: TensorFormat, config: DecoderConfig, checkpoint: Checkpoint) -> str | None:
    """The first tensor of a head of this form that the checkpoint has, and that a plain head would not have."""
    plain = head_table(config)
    every = form.parts(config.names.head, plain.shape).source("weight").tensors
    return next((one.name for one in every if one.name != plain.name and one.name in checkpoint.names), None)


def _equal(checkpoint: Checkpoint, one: Tensor, other: Tensor, dtype: np.dtype) -> bool:
    """Return whether two matrices of equal shape have equal values in `dtype`."""
    rows, columns = one.shape
    count = max(1, _COMPARED_AT_ONCE // columns)
    parts = [slice(start, min(start + count, rows)) for start in range(0, rows, count)]

    def read(tensor: Tensor, rows: slice) -> np.ndarray:
        return checkpoint.read(tensor.name, (rows,)).astype(dtype)

    return all(np.array_equal(read(one, rows), read(other, rows)) for rows in parts)
