"""A checkpoint that holds a head of its own though its config.json ties the head to the embedding."""

import logging
from dataclasses import replace

import numpy as np

from jaxinfer.checkpoint.safetensors import Checkpoint
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.models.huggingface import EMBED, HEAD

log = logging.getLogger(__name__)

_COMPARED_AT_ONCE = 8 * 2**20  # elements of each tensor, so that no second copy of a large one is held


def with_own_head(config: DecoderConfig, checkpoint: Checkpoint, dtype: np.dtype) -> DecoderConfig:
    """`config`, untied where the checkpoint's head differs from its embedding; logs a warning then.

    transformers, too, uses both weights then and ties those that are equal. They are compared in `dtype`, in which
    they would be used. Raises ModelError where the head has another shape than the embedding or cannot be read.
    """
    if not config.tie_word_embeddings or HEAD not in checkpoint.names:
        return config
    shape = (config.vocab_size, config.hidden_size)
    for name in (EMBED, HEAD):
        checkpoint.check_tensor(name, shape)
    if _equal(checkpoint, shape, dtype):
        return config
    log.warning(
        "config.json: tie_word_embeddings is true, but %s and %s differ: both are used. If that is right, set it to "
        "false; else remove %s from the checkpoint",
        *(EMBED, HEAD, HEAD),
    )
    return replace(config, tie_word_embeddings=False)


def _equal(checkpoint: Checkpoint, shape: tuple[int, int], dtype: np.dtype) -> bool:
    count = max(1, _COMPARED_AT_ONCE // shape[1])
    parts = [slice(start, min(start + count, shape[0])) for start in range(0, shape[0], count)]

    def read(name: str, rows: slice) -> np.ndarray:
        return checkpoint.read(name, (rows,)).astype(dtype)

    return all(np.array_equal(read(EMBED, rows), read(HEAD, rows)) for rows in parts)
