"""The engine's door: what can never be served is refused here, before anything is allocated."""

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.engine.types import MAX_PRIORITY, GenerateRequest
from jaxinfer.errors import ParameterError
from jaxinfer.sampling import MAX_STOP_TOKEN_IDS


def check_request(request: GenerateRequest, shapes: EngineShapes, *, uses_priority: bool) -> int:
    """Returns the most tokens, prompt included, that the request may grow to. Raises ParameterError."""
    prompt, params = request.prompt_token_ids, request.sampling
    if not len(prompt):
        raise ParameterError("prompt", "is empty; at least one token is needed")
    if len(prompt) >= shapes.max_model_len:
        raise ParameterError(
            "prompt",
            f"has {len(prompt)} tokens, and the model's context is {shapes.max_model_len}, the output included",
        )
    low, high = min(prompt), max(prompt)
    if low < 0 or high >= shapes.vocab_size:
        raise ParameterError("prompt", f"token id {low if low < 0 else high} is not in 0 to {shapes.vocab_size - 1}")
    if params.n > shapes.max_num_seqs:
        raise ParameterError("n", f"{params.n} is more than the {shapes.max_num_seqs} requests that run at once")
    if request.priority and not uses_priority:
        raise ParameterError("priority", "must be 0: the engine's scheduling_policy is not priority")
    if abs(request.priority) > MAX_PRIORITY:
        raise ParameterError("priority", f"{request.priority} is out of range; {MAX_PRIORITY} either way is allowed")
    params.check_vocabulary(shapes.vocab_size)
    room = shapes.max_model_len - len(prompt)
    limit = len(prompt) + min(room, params.max_tokens or room)
    _check_pages(limit, shapes)
    return limit


def stop_ids_of(request: GenerateRequest, eos_ids: tuple[int, ...]) -> frozenset[int]:
    """Ids that end the request. Raises ParameterError where they are more than a slot holds."""
    params = request.sampling
    ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(eos_ids))
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise ParameterError("stop_token_ids", f"with the model's own makes {len(ids)}; {MAX_STOP_TOKEN_IDS} is most")
    return ids


def _check_pages(limit: int, shapes: EngineShapes) -> None:
    size = shapes.page_size
    whole = -(-(limit - 1) // size)  # the last token is drawn, and never computed
    for group in shapes.groups:
        need = whole
        if group.window is not None:
            need = min(whole, (group.window + shapes.max_num_batched_tokens) // size + 2)
        if need > group.num_pages - 1:
            raise ParameterError(
                "max_tokens",
                f"prompt and output may take {limit} tokens, {need} KV pages of {size}; "
                f"there are {group.num_pages - 1}: ask for fewer tokens",
            )
