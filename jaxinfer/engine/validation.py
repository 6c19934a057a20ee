"""Request validation: what can never be served is refused here, before anything is allocated."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxinfer.engine.constraint import Matcher
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.engine.token_rules import RuledMatcher, TokenRules
from jaxinfer.engine.types import MAX_PRIORITY, NO_PREDICTIONS, GenerateRequest
from jaxinfer.errors import ParameterError
from jaxinfer.sampling import MAX_STOP_TOKEN_IDS

_NO_IDS = np.zeros(0, np.int32)


class CheckedRequest(NamedTuple):
    """A request that can be served. ids: its prompt, int32. limit: the most tokens, prompt included, that it may grow
    to. stop_ids: ids that end it. rules: of its tokens; None: it has none. arrival: its place among all requests; None:
    that of when it is queued. matcher: what it may say, once that is compiled. prediction: int32.
    """

    request: GenerateRequest
    ids: np.ndarray
    limit: int
    stop_ids: frozenset[int]
    rules: TokenRules | None = None
    arrival: int | None = None
    matcher: Matcher | None = None
    prediction: np.ndarray = _NO_IDS

    @property
    def is_constrained(self) -> bool:
        """Return whether the request has a compiled matcher, or needs one."""
        return self.request.sampling.constraint is not None


def check_request(
    request: GenerateRequest, shapes: EngineShapes, *, eos_ids: Sequence[int], uses_priority: bool
) -> CheckedRequest:
    """Raises ParameterError where the request can never be served."""
    ids, params = _prompt_ids(request.prompt_token_ids, shapes), request.sampling
    prediction = _prediction(request.prediction, shapes)
    if request.priority and not uses_priority:
        raise ParameterError("priority", "must be 0: the engine's scheduling_policy is not priority")
    if abs(request.priority) > MAX_PRIORITY:
        raise ParameterError("priority", f"{request.priority} is out of range; {MAX_PRIORITY} either way is allowed")
    params.check_vocabulary(shapes.vocab_size)
    room = shapes.max_model_len - len(ids)
    limit = len(ids) + min(room, params.max_tokens or room)
    _check_blocks(limit, shapes)
    checked = CheckedRequest(request, ids, limit, _stop_ids(request, eos_ids), prediction=prediction)
    return _with_rules(checked, shapes.vocab_size)


def _with_rules(checked: CheckedRequest, vocab_size: int) -> CheckedRequest:
    """Rules alone need not be compiled."""
    params = checked.request.sampling
    if params.bad_words and not params.bad_token_ids:
        raise ParameterError("bad_words", "needs bad_token_ids, its tokens: this engine has no tokenizer of its own")
    if not params.has_token_rules:
        return checked
    rules = TokenRules(params, checked.stop_ids, vocab_size)
    return checked._replace(rules=rules, matcher=None if checked.is_constrained else RuledMatcher(rules))


def _prompt_ids(prompt: Sequence[int] | np.ndarray, shapes: EngineShapes) -> np.ndarray:
    """The prompt as int32."""
    if not len(prompt):
        raise ParameterError("prompt", "is empty; at least one token is needed")
    if len(prompt) >= shapes.max_model_len:
        raise ParameterError(
            "prompt",
            f"has {len(prompt)} tokens, and the model's context is {shapes.max_model_len}, the output included",
        )
    return _ids(prompt, shapes, "prompt")


def _prediction(prediction: Sequence[int] | np.ndarray, shapes: EngineShapes) -> np.ndarray:
    """The prediction as int32, without what no output can reach."""
    if not len(prediction):
        return _NO_IDS
    if not shapes.takes_predictions:
        raise ParameterError("prediction", NO_PREDICTIONS)
    return _ids(prediction, shapes, "prediction")[: shapes.max_model_len]


def _ids(tokens: Sequence[int] | np.ndarray, shapes: EngineShapes, param: str) -> np.ndarray:
    """Token ids as int32, at least one. param: what errors call them."""
    if isinstance(tokens, np.ndarray):
        if tokens.dtype.kind not in "iu":
            raise ParameterError(param, "token ids must be integers")
        low, high = int(tokens.min()), int(tokens.max())
    else:
        low, high = min(tokens), max(tokens)
    if low < 0 or high >= shapes.vocab_size:
        raise ParameterError(param, f"token id {low if low < 0 else high} is not in 0 to {shapes.vocab_size - 1}")
    if isinstance(tokens, np.ndarray) and tokens.dtype == np.int32:
        return tokens
    try:
        return np.array(array("i", tokens), np.int32)
    except TypeError:  # NumPy would round what is no integer
        raise ParameterError(param, "token ids must be integers") from None


def _stop_ids(request: GenerateRequest, eos_ids: Sequence[int]) -> frozenset[int]:
    params = request.sampling
    ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(eos_ids))
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise ParameterError("stop_token_ids", f"with the model's own makes {len(ids)}; {MAX_STOP_TOKEN_IDS} is most")
    return ids


def _check_blocks(limit: int, shapes: EngineShapes) -> None:
    size = shapes.block_size
    whole = -(-(limit - 1) // size)  # the last token is drawn, and never computed
    for group in shapes.groups:
        need = whole
        if group.window is not None:
            need = min(whole, (group.window + shapes.max_num_batched_tokens) // size + 2)
        if need > group.num_blocks - 1:
            raise ParameterError(
                "max_tokens",
                f"prompt and output may take {limit} tokens, {need} KV blocks of {size}; "
                f"there are {group.num_blocks - 1}: ask for fewer tokens",
            )
