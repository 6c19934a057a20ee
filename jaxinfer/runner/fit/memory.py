"""Number of KV blocks that fit beside weights, temporaries and slot state."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax

from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.errors import ParameterError
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.quantization.array import held_bytes
from jaxinfer.runner.platform.autotune_cache import read_note, shapes_digest, write_note
from jaxinfer.runner.platform.values import platform_of
from jaxinfer.runner.platform.xla_options import Options, described
from jaxinfer.runner.programs.compiled import Programs
from jaxinfer.runner.programs.table import Name
from jaxinfer.runner.state import zero_slots
from jaxinfer.runner.step.draft_model import draft_shapes, followed_group
from jaxinfer.runner.step.features import feature_arrays

_SHARE_BITS, _MOST_BITS = 7, 6
"""Exponents that bound the step of a number of blocks: it is a power of two, at most a 64th of the number, at most
64."""
_TRIAL_BLOCKS = 64


def block_bytes(model: LoadedModel, group: int, block_size: int) -> int:
    """Bytes of one block of a group over all its layers, on one device."""
    shape = model.kv_shape(group, 1, block_size)
    split = model.kv_sharding(group, 1, block_size).shard_shape(shape)
    count = 1
    for size in split:
        count *= size
    return count * model.kv_dtype(group).itemsize


def block_costs(model: LoadedModel, shapes: EngineShapes) -> list[int]:
    """Bytes of one block of every group, on one device: what is not split lies on each. With the block of a group
    that a draft model follows goes one of each of that model's."""
    costs = [block_bytes(model, group, shapes.block_size) for group in range(len(shapes.groups))]
    if model.draft is not None:
        costs[followed_group(model.config)] += sum(block_costs(model.draft, draft_shapes(model, shapes)))
    return costs


def fit_blocks(budget: int, costs: Sequence[int], caps: Sequence[int]) -> list[int]:
    """Blocks a group: as many for each as the budget allows, at most its cap, on a grid that leaves at most a 64th.

    budget: bytes. costs: bytes of a block a group. caps: most blocks that are of use to a group.
    What a group's cap leaves is shared by the others.
    """
    low, high = 0, max(caps)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(cost * min(middle, cap) for cost, cap in zip(costs, caps, strict=True)) <= budget:
            low = middle
        else:
            high = middle - 1
    step = 1 << min(max(low.bit_length() - _SHARE_BITS, 0), _MOST_BITS)
    return [min(low // step * step, cap) for cap in caps]


def sequence_blocks(windows: Sequence[int | None], tokens: int, block_size: int) -> list[int]:
    """Blocks of one sequence of so many tokens, an entry a KV group. A window may begin and end within a block."""
    kept = [tokens if window is None else min(tokens, window + block_size) for window in windows]
    return [-(-count // block_size) for count in kept]


def with_blocks(shapes: EngineShapes, blocks: Sequence[int]) -> EngineShapes:
    """Return the shapes with a number of blocks for each group."""
    groups = tuple(KVGroup(group.window, count) for group, count in zip(shapes.groups, blocks, strict=True))
    return replace(shapes, groups=groups)


def row_blocks(shapes: EngineShapes) -> list[int]:
    """Most blocks of each group that one running sequence can hold."""
    counts = []
    for group in shapes.groups:
        tokens = shapes.max_model_len
        if group.window is not None:
            # A block behind the window stays until the step after the one that left it behind was collected.
            tokens = min(tokens, group.window + 2 * shapes.max_num_batched_tokens)
        counts.append(-(-tokens // shapes.block_size) + 1)
    return counts


def useful_blocks(shapes: EngineShapes) -> list[int]:
    """Most blocks a group that running sequences can hold at once, and as many again for the prefix cache."""
    counts = [1 + 2 * shapes.max_num_seqs * blocks for blocks in row_blocks(shapes)]
    if any(group.window is None for group in shapes.groups):
        # Full groups keep as long a prefix cache as memory allows.
        counts = [2**31 if g.window is None else n for g, n in zip(shapes.groups, counts, strict=True)]
    return counts


MakePrograms = Callable[[EngineShapes], Programs]
"""make(shapes): an engine's programs, of a model or of a stage of one, for shapes with other numbers of blocks."""


def step_temporaries(
    model: LoadedModel, shapes: EngineShapes, options: Options | None = None, make: MakePrograms | None = None
) -> int:
    """Bytes of temporaries of the largest forward or sample, from trial compilations.

    Programs run one after another, so the larger counts. They do not depend on the block count.
    """
    trial = with_blocks(shapes, [_TRIAL_BLOCKS] * len(shapes.groups))
    programs = Programs(model, trial, options) if make is None else make(trial)
    names: list[Name] = [
        ("mixed", trial.max_num_batched_tokens),
        ("sample", trial.max_scored),
        ("multi_step", trial.max_num_seqs),
        ("speculate", trial.max_num_seqs),
    ]
    if ("speculate", trial.max_num_seqs) not in programs.names:  # a pipeline's stages have parts of it
        names += [(kind, trial.max_num_seqs) for kind in ("draft", "verify", "accept")]
    found = (programs.compile(name) for name in names if name in programs.names)
    return max(int(program.memory_analysis().temp_size_in_bytes) for program in found)


def slot_bytes(columns: int, groups: int, blocks_per_row: int, history: int = 0) -> int:
    """About the bytes of a slot's state on one device: counts of as many columns of the vocabulary as it holds, block
    tables, tokens that drafts are made from, and the rest rounded up."""
    return 2 * columns + 4 * groups * blocks_per_row + 4 * history + 4096


def state_bytes(shapes: EngineShapes, columns: int, platform: str) -> int:
    """Bytes of the state of all slots of a shard on one device, which has counts of so many columns."""
    slots = jax.eval_shape(partial(zero_slots, replace(shapes, shards=1), columns))
    return sum(held_bytes(array.shape, array.dtype, platform) for array in jax.tree.leaves(slots))


def handed_bytes(config: DecoderConfig, shapes: EngineShapes, itemsize: int) -> int:
    """Bytes of hidden states that one device of a stage is handed and hands on, of all steps in flight; 0 of a whole
    model. Of a step that drafts the last stage's lie there, too, until they are sampled. itemsize: of activations."""
    whole, drafts = config.embeds and config.ends, shapes.drafting is not None
    arrays = (not config.embeds) + (not config.ends) + (drafts and config.ends and not whole)
    tokens = max(shapes.max_num_batched_tokens, shapes.max_num_seqs * shapes.row_tokens if drafts else 0)
    return (shapes.stages + 1) * arrays * tokens * config.hidden_size * itemsize


def feature_bytes(model: LoadedModel, shapes: EngineShapes) -> int:
    """Bytes of what is kept for an EAGLE-3 head of all slots of a shard, on one device; 0 without one."""
    arrays = feature_arrays(model, replace(shapes, shards=1))
    return sum(held_bytes(array.shape, array.dtype, platform_of(model.mesh)) for array in arrays)


def device_blocks(
    model: LoadedModel,
    shapes: EngineShapes,
    *,
    limit: int,
    cache: Path | None,
    options: Options | None = None,
    make: MakePrograms | None = None,
) -> list[int]:
    """Blocks a group where `limit` bytes of a device hold everything. Raises ParameterError where not even one fits.

    limit: of the device that has the least. What is counted is what lies on one device: shards of what is split, all of
    the rest. Shards are equal, so it is the same on each. make: of a stage of a pipeline, whose model and shapes are
    given: its programs.
    """
    key = shapes_digest(model, shapes, described(options or {}))
    temporaries = remembered(cache, key, lambda: step_temporaries(model, shapes, options, make))
    weights = weight_bytes(model)
    rows = model.config.table_shape[0] if model.config.ends else 0
    columns = rows // math.prod(model.mesh.shape[axis] for axis in model.rules.vocab)
    state = state_bytes(shapes, columns, platform_of(model.mesh)) + feature_bytes(model, shapes)
    state += handed_bytes(model.config, shapes, model.dtype.itemsize)
    costs = block_costs(model, shapes)
    blocks = fit_blocks(max(limit - weights - temporaries - state, 0), costs, useful_blocks(shapes))
    if min(blocks) < 2:
        raise ParameterError(
            "gpu_memory_utilization",
            f"the {limit >> 20} MiB that it gives leave no room for KV blocks: weights take {weights >> 20} MiB, "
            f"temporaries {temporaries >> 20} MiB, slot state {state >> 20} MiB",
        )
    return blocks


def remembered(cache: Path | None, key: str, measure: Callable[[], int]) -> int:
    """A number measured once for a key, kept in a file beside the compile cache."""
    file = cache / f"temporaries-{key}.json" if cache else None
    known = read_note(file, "bytes")
    if isinstance(known, int):
        return known
    value = measure()
    write_note(file, {"bytes": value})
    return value


def weight_bytes(model: LoadedModel) -> int:
    """Bytes of all weights on one device, with a draft model's. A tied head is one of the weights."""
    arrays = (*model.weights_with_draft, *model.head_with_draft)
    return sum(map(_on_one_device, {id(array): array for array in arrays}.values()))


def _on_one_device(array: Any) -> int:
    layout, platform = array.format.layout, next(iter(array.sharding.device_set)).platform
    order = None if layout is None else layout.major_to_minor
    return held_bytes(array.sharding.shard_shape(array.shape), array.dtype, platform, order)
