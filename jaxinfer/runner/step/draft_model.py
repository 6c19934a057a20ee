"""A draft model beside the one that it drafts for: its KV blocks are those of the other's sequences.

It has KV arrays of its own and no block tables: the tokens of a block of the target's have their keys and values in the
block of the same number here. So what the scheduler knows of blocks, sharing, forks and prefix hits among it, holds for
both.
"""

from dataclasses import replace
from pathlib import Path

from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.errors import ModelError
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.models.declared import read_declared
from jaxinfer.models.loaded import LoadedModel


def followed_group(config: DecoderConfig) -> int:
    """The KV group of a target whose blocks its draft model shares: one that keeps every token, or the longest."""
    windows = [group.window for group in config.kv_groups]
    return windows.index(None) if None in windows else windows.index(max(filter(None, windows)))


def kept_tokens(config: DecoderConfig, shapes: EngineShapes) -> int:
    """Return how many of a sequence's last tokens are sure to have blocks of `followed_group`; blocks of earlier tokens
    may belong to another sequence."""
    window = config.kv_groups[followed_group(config)].window
    return shapes.max_model_len if window is None else window


def followed_groups(model: LoadedModel) -> list[int]:
    """Return, for each KV array of a model and its draft model, the model's KV group that decides which sequence has
    which of its blocks."""
    own = list(range(len(model.backends)))
    return own if model.draft is None else own + [followed_group(model.config)] * len(model.draft.backends)


def draft_shapes(model: LoadedModel, shapes: EngineShapes) -> EngineShapes:
    """The sizes of an engine as its draft model sees them: as many blocks in each of its own KV groups as there are in
    the one that it follows."""
    assert model.draft is not None
    blocks = shapes.groups[followed_group(model.config)].num_blocks
    return replace(shapes, groups=tuple(KVGroup(group.window, blocks) for group in model.draft.config.kv_groups))


def declared_draft(folder: Path, target: DecoderConfig, length: int) -> DecoderConfig:
    """The decoder that a folder declares, to draft for another in sequences of `length` tokens. Raises ModelError where
    it cannot."""
    draft = read_declared(folder).config.at_context(length)
    check_draft(folder, target, draft, length)
    return draft


def check_draft(folder: Path, target: DecoderConfig, draft: DecoderConfig, length: int) -> None:
    """Raises ModelError where a decoder of a folder cannot draft for another in sequences of `length` tokens."""
    try:
        _check(target, draft, length)
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from None


def _check(target: DecoderConfig, draft: DecoderConfig, length: int) -> None:
    if draft.max_position_embeddings < length:
        raise ModelError(
            f"the draft model is for {draft.max_position_embeddings} tokens, and max_model_len is {length}: set "
            f"max_model_len to {draft.max_position_embeddings} or take another draft model"
        )
    kept = target.kv_groups[followed_group(target)].window
    if kept is not None and any(group.window is None or group.window > kept for group in draft.kv_groups):
        where = "the model keeps" if target.span is None else "the first stage of its pipeline keeps (pipeline_layers)"
        raise ModelError(f"the draft model sees more than the {kept} tokens whose KV blocks {where}")


def with_draft(model: LoadedModel, draft: LoadedModel) -> LoadedModel:
    """The model with another that drafts for it, on the same devices."""
    return replace(model, draft=draft)
