"""Sizes of an engine's steps, from what is asked for and from the device, which need not be here."""

import logging
from dataclasses import replace
from typing import NamedTuple

from jaxinfer.config import EngineConfig, SchedulerConfig
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.errors import ParameterError
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.runner.fit.memory import slot_bytes
from jaxinfer.runner.platform.values import default_block_size, device_memory, platform_name
from jaxinfer.speculation import read_speculation

log = logging.getLogger(__name__)

MOST_SLOTS = 256
"""Most slots on a GPU or TPU if no number was asked for."""
_MOST_SLOTS_LARGE = 1024
"""The same where a device is large: requests that are short fill more of them."""
_PROMPT_SCORED = 64
"""Positions of prompts that a step scores beside a row of every slot."""
_LARGE_DEVICE = 60 * 2**30
"""Least bytes of a device of "64 GiB or more", once its driver has taken its part."""
_STATE_SHARE = 1 / 32
"""Share of a device's memory for the state of all slots."""


class Device(NamedTuple):
    """platform: `cpu`, `gpu`, `tpu`. memory: all of its bytes; None where it does not tell. native: whether native
    kernels compute a model on it."""

    platform: str
    memory: int | None
    native: bool = False


def this_device(native: bool = False) -> Device:
    """Describe the devices of this process, which are alike."""
    return Device(platform_name(), device_memory(), native)


def plan_shapes(
    config: EngineConfig, decoder: DecoderConfig, device: Device, shards: int = 1, stages: int = 1
) -> EngineShapes:
    """Static sizes but for the block counts, which are 0 still: those of a shard. What is asked for is the total of all
    shards, and shared out among them."""
    scheduler, length = config.scheduler, context_of(config, decoder)
    block_size = config.cache.block_size or default_block_size(device.platform)
    _check_shares(scheduler, shards)
    drafting = read_speculation(scheduler.speculative_config)
    history = 0 if drafting is None else length
    state = slot_bytes(decoder.vocab_size, len(decoder.kv_groups), -(-length // block_size), history)
    seqs, tokens = _rows_and_tokens(scheduler, length, device, state, shards)
    seqs, tokens = seqs // shards, tokens // shards
    scored = None if scheduler.max_scored is None else scheduler.max_scored // shards
    return EngineShapes(
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_scored=scored or min(tokens, seqs + _PROMPT_SCORED),
        max_model_len=length,
        block_size=block_size,
        groups=tuple(KVGroup(group.window, 0) for group in decoder.kv_groups),
        vocab_size=decoder.vocab_size,
        decode_steps=scheduler.decode_steps,
        drafting=drafting,
        shards=shards,
        stages=stages,
        few_sizes=device.native,
    )


def _check_shares(scheduler: SchedulerConfig, shards: int) -> None:
    """Each shard has one at least of what is asked for."""
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_scored"):
        value = getattr(scheduler, name)
        if isinstance(value, int) and value < shards:
            raise ParameterError(name, f"{value} must be at least {shards}: it is shared out among {shards} shards")


def _rows_and_tokens(
    scheduler: SchedulerConfig, length: int, device: Device, state: int, shards: int
) -> tuple[int, int]:
    """Slots, and tokens of a step, of all shards together. What is `auto` fits what is given. state: bytes of a
    slot's."""
    seqs, tokens = scheduler.max_num_seqs, scheduler.max_num_batched_tokens
    if seqs == "auto":
        bounds = [bound for bound in (tokens, scheduler.max_scored) if isinstance(bound, int)]
        seqs = min([max(_default_num_seqs(device, state), shards), *bounds])
    whole_prompts = 0 if scheduler.enable_chunked_prefill else length * shards
    if tokens == "auto":
        tokens = max(_default_token_budget(device), seqs, whole_prompts)
    if tokens < whole_prompts:
        least = f"max_model_len, {length}" if shards == 1 else f"max_model_len for each shard, {length} * {shards}"
        raise ParameterError(
            "max_num_batched_tokens",
            f"{tokens} must be at least {least}, where prompts are not split (enable_chunked_prefill)",
        )
    return seqs, tokens


def context_of(config: EngineConfig, decoder: DecoderConfig) -> int:
    """Tokens of the longest sequence. Raises ParameterError where more are asked for than the model declares."""
    asked, declared = config.load.max_model_len, decoder.max_position_embeddings
    if asked is not None and asked > declared:
        raise ParameterError("max_model_len", f"{asked} is more than the model's max_position_embeddings, {declared}")
    return asked or declared


def fit_context(config: EngineConfig, shapes: EngineShapes) -> EngineShapes:
    """Shorten the context to what all blocks hold together: more could never be used. Raises ParameterError if a longer
    one was asked for, and if the blocks hold no request at all."""
    full = [group.num_blocks - 1 for group in shapes.groups if group.window is None]
    room = min(full, default=shapes.blocks_per_row) * shapes.block_size
    if room >= shapes.max_model_len:
        return shapes
    if room < 2:
        raise ParameterError("num_blocks", f"the KV blocks hold {room} tokens; a prompt and its output need 2 at least")
    length, remedy = shapes.max_model_len, f"--num-blocks {(1 + shapes.blocks_per_row) * shapes.shards} would"
    if config.load.max_model_len is not None:
        message = f"{length} tokens do not fit into the KV blocks, which hold {room}; where memory allows, {remedy}"
        raise ParameterError("max_model_len", message)
    message = "max_model_len is %d instead of %d: the KV blocks hold no more; where memory allows, %s"
    log.warning(message, room, length, remedy)
    return replace(shapes, max_model_len=room)


def _default_token_budget(device: Device) -> int:
    """Tokens a step computes at most where no bound was asked for."""
    if device.platform == "cpu":
        return 512
    return 8192 if (device.memory or 0) >= _LARGE_DEVICE else 2048


def _default_num_seqs(device: Device, state: int) -> int:
    """Slots where no number was asked for: a power of two, whose state, of so many bytes each, takes a small part of a
    device's memory."""
    if device.platform == "cpu":
        return 32
    slots = _MOST_SLOTS_LARGE if device.memory is not None and device.memory >= _LARGE_DEVICE else MOST_SLOTS
    while device.memory is not None and slots > 32 and slots * state > device.memory * _STATE_SHARE:
        slots //= 2
    return slots
