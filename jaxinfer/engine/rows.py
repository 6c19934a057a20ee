"""Rows of a plan whose tokens come from the host: how long one may be, and what of it is scored."""

from typing import NamedTuple

from jaxinfer.engine.plan_builder import PlanBuilder
from jaxinfer.engine.request import Request


class Fit(NamedTuple):
    """Tokens of a row, and how many of them, the last ones, are scored."""

    count: int
    scored: int


def fit(request: Request, pending: int, room: int, scored_left: int, *, split: bool) -> Fit:
    """How much of a request's `pending` tokens a plan with room for so many tokens and scored positions takes.

    scored_left: at least one, and more are of use only to a prompt whose log-probabilities are asked for.
    split: whether prompts may be computed over several steps.
    """
    count = min(pending, room)
    if request.owes_prompt_logprobs:
        # Every position is scored: by its next token, or, at the prompt's end, by a draw.
        count = min(count, scored_left)
        return Fit(count, count)
    if count < pending and not split:
        return Fit(0, 0)
    return Fit(count, int(count == pending and not request.is_parent))


def add_row(plan: PlanBuilder, request: Request, start: int, count: int, scored: int, *, total: int) -> None:
    """Adds the row of `count` tokens from position `start` on. total: the request's tokens, known and in flight."""
    end = start + count
    draws = end == total and not request.is_parent
    targets: list[int] = []
    if request.owes_prompt_logprobs:
        targets = request.tokens[start + 1 : end + 1].tolist()
    if draws:
        targets = [*targets[: scored - 1], -1]
    plan.add_chunk(request.slot, request.tokens[start:end], targets, draws=draws)
