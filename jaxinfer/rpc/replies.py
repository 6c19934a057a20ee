"""Conversion of the engine's output to messages of jaxinfer.proto."""

from collections.abc import Sequence

from jaxinfer.engine.stats.counters import EngineStats, statistics_of
from jaxinfer.engine.types import FinishReason, TokenLogprobs
from jaxinfer.rpc import jaxinfer_pb2 as pb
from jaxinfer.serving.usage import Usage
from jaxinfer.text import ChoiceDelta

# Clients take messages of 4 MiB by default; an entry takes some fifteen bytes.
_ENTRIES = 100_000

# Statistics keep the names under which clients know them.
_PUBLIC_NAMES = {
    "kv_blocks_used": "kv_pages_used",
    "kv_blocks_total": "kv_pages_total",
    "waiting_for_blocks": "waiting_for_pages",
}

_REASONS = {
    None: pb.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
}


def pack_choice(delta: ChoiceDelta) -> pb.ChoiceDelta:
    """Pack the delta of a choice. Choices that failed or were aborted have no message: they end the stream."""
    reason = delta.stop_reason
    return pb.ChoiceDelta(
        index=delta.index,
        text=delta.text,
        token_ids=delta.token_ids,
        logprobs=[_pack_logprob(entry) for entry in delta.logprobs or ()],
        finish_reason=_REASONS[delta.finish_reason],
        stop_string=reason if isinstance(reason, str) else None,
        stop_token_id=reason if isinstance(reason, int) else None,
    )


def pack_prompt(logprobs: Sequence[TokenLogprobs | None]) -> list[pb.GenerateResponse]:
    """Log-probabilities of a prompt, in messages that clients take."""
    known = [entry for entry in logprobs if entry is not None]
    at_once = max(1, _ENTRIES // (1 + len(known[0].top))) if known else 1
    parts = (known[start : start + at_once] for start in range(0, len(known), at_once))
    return [pb.GenerateResponse(prompt_logprobs=map(_pack_logprob, part)) for part in parts]


def pack_usage(usage: Usage) -> pb.Usage:
    """Tokens of a request."""
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.prompt_tokens_details.cached_tokens,
    )


def pack_stats(stats: EngineStats) -> dict[str, float]:
    """Pack statistics by name; a tuple's numbers by name and place, as in `step_tokens.0`."""
    values: dict[str, float] = {}
    for field, value, _ in statistics_of(stats):
        name = _PUBLIC_NAMES.get(field, field)
        if isinstance(value, tuple):
            values |= {f"{name}.{i}": one for i, one in enumerate(value)}
        else:
            values[name] = value
    return values


def _pack_logprob(entry: TokenLogprobs) -> pb.TokenLogprob:
    top = [pb.TopLogprob(token_id=token, logprob=value) for token, value in entry.top]
    return pb.TokenLogprob(token_id=entry.token_id, logprob=entry.logprob, rank=entry.rank, top=top)
