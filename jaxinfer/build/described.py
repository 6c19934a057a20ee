"""Descriptions of an engine's sizes, for people and for clients. No jax."""

from typing import TYPE_CHECKING

from jaxinfer.config import EngineConfig
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.engine.types import ModelInfo

if TYPE_CHECKING:
    from jaxinfer.build.fitted import Fitted


def backends_of(fitted: "Fitted") -> str:
    """Name what attends in the model's KV groups, each once."""
    return ", ".join(dict.fromkeys(backend.name for part in fitted.model.parts for backend in part.backends))


def sizes_of(fitted: "Fitted") -> str:
    """Describe an engine in one line for the user."""
    return sizes_line(_place(fitted), _types(fitted), backends_of(fitted), fitted.shapes)


def sizes_line(place: str, dtype: str, backends: str, shapes: EngineShapes) -> str:
    """Describe an engine's type, backends and sizes in one line for the user. place: platform and mesh.

    Blocks are those of the first KV group, and its tokens.
    """
    blocks, size = shapes.groups[0].num_blocks, shapes.block_size
    drafts = f"; {shapes.drafting.tokens} drafts by {shapes.drafting.drafter}" if shapes.drafting is not None else ""
    return (
        f"{dtype} on {place}, attention {backends}; {shapes.all_seqs} sequences at once, "
        f"{shapes.max_num_batched_tokens * shapes.shards:,} tokens a step, context {shapes.max_model_len:,}; "
        f"{blocks * shapes.shards:,} KV blocks of {size}, for {(blocks - 1) * shapes.shards * size:,} tokens{drafts}"
    )


def model_info(config: EngineConfig, fitted: "Fitted") -> ModelInfo:
    """Describe an engine for its clients."""
    shapes, sized = fitted.shapes, fitted.placed.sized
    return ModelInfo(
        name=config.model,
        max_model_len=shapes.max_model_len,
        vocab_size=shapes.vocab_size,
        max_num_seqs=shapes.all_seqs,
        block_size=shapes.block_size,
        num_blocks=shapes.groups[0].num_blocks * shapes.shards,
        attention_backend=backends_of(fitted),
        scheduling_policy=config.scheduler.scheduling_policy,
        kv_cache_dtype=config.cache.kv_cache_dtype,
        dtype=str(sized.dtype),
        weights=fitted.model.config.held_in(str(sized.dtype)),
        shards=shapes.shards,
        mesh=str(sized.mesh),
        takes_predictions=shapes.takes_predictions,
    )


def _place(fitted: "Fitted") -> str:
    """The devices, and how layers lie on them, for people."""
    sized = fitted.placed.sized
    place = sized.platform if sized.mesh.size == 1 else f"{sized.platform} ({sized.mesh})"
    if len(sized.spans) > 1:
        place += f", stages of layers {', '.join(f'{first}-{last - 1}' for first, last in sized.spans)}"
    # A CPU's always are.
    in_loop = fitted.model.parts[0].layout == "stacked" and sized.platform != "cpu"
    return place + (", layers in a loop" if in_loop else "")


def _types(fitted: "Fitted") -> str:
    """Return the type of activations, and the types of weights and KV blocks that differ from it."""
    model, dtype = fitted.model, str(fitted.placed.sized.dtype)
    every = (str(part.kv_type(group)) for part in model.parts for group in range(len(part.backends)))
    kept, held = ", ".join(dict.fromkeys(every)), model.config.held_in(dtype)
    others = [f"{name} in {form}" for name, form in (("weights", held), ("KV blocks", kept)) if form != dtype]
    return f"{dtype} ({'; '.join(others)})" if others else dtype
