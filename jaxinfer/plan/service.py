"""Service: how long requests of a workload take on a mesh, in the steady state."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxinfer.engine.scheduler.stage_rows import LEAST_PROMPT_TOKENS, prompt_share, prompt_steps
from jaxinfer.plan.estimate import MeshPlan
from jaxinfer.plan.pipeline import Round, steady_round
from jaxinfer.plan.work import ShardRows

_REPEATS = 4
"""After which what steps have of prompts moves no more."""


class Workload(NamedTuple):
    """Requests of so many tokens in and out. rate: that come in a second; None: whenever there is room."""

    tokens_in: int
    tokens_out: int
    rate: float | None = None

    @property
    def middle(self) -> int:
        """Tokens of a request that has half of its output."""
        return self.tokens_in + self.tokens_out // 2


class Service(NamedTuple):
    """Service of a workload by a mesh. batch: requests under way, as many as fit. ttft: of a request that waits for
    nobody. itl: between two tokens of a request, on average, with the prompts of others between them, and drafts if
    they pay. tokens_per_second: of output, of the whole mesh."""

    batch: int
    ttft: float
    itl: float
    tokens_per_second: float


def service(plan: MeshPlan, workload: Workload, batch: int) -> Service:
    """Estimate the service in the steady state, as the engine packs steps. batch: most requests under way; fewer if
    slots or blocks do not suffice."""
    batch = min(batch, plan.holds(workload.tokens_in + workload.tokens_out), plan.shapes.all_seqs)
    if not batch:
        return Service(0, 0.0, 0.0, 0.0)
    return _of_pipeline(plan, workload, batch) if plan.stages else _of_one_stage(plan, workload, batch)


def _of_one_stage(plan: MeshPlan, workload: Workload, batch: int) -> Service:
    """Prompts fill the budget of tokens of a step, in which the others decode. As many requests are under way as begin
    before the first of them ends."""
    rows, budget = -(-batch // plan.mesh.data), plan.shapes.max_num_batched_tokens
    at_once = max(1, min(rows, budget // workload.tokens_in))
    own, decoded = -(-workload.tokens_in // budget), workload.tokens_out - 1
    # Where prompts take more steps than a request decodes, it ends before all the others have begun.
    rows = min(rows, at_once * (own + decoded) // own)
    batch = min(batch, rows * plan.mesh.data)
    others = own * (rows - at_once) / at_once  # steps with prompts while a request decodes
    drafting = _drafting_steps(plan, ShardRows(rows, 1, workload.middle), decoded)
    if drafting > others:
        others, at_once = drafting, max(1, round(rows * own / (drafting + own)))
    decode = plan.token_seconds(ShardRows(rows, 1, workload.middle))
    mixed = _mixed_seconds(plan, workload.tokens_in, at_once, ShardRows(rows - at_once, 1, workload.middle))
    decoding = others * mixed + (decoded - others) * decode
    rate = batch * workload.tokens_out / (own * mixed + decoding)
    return Service(batch, plan.prefill(workload.tokens_in), decoding / max(decoded, 1), rate)


def _drafting_steps(plan: MeshPlan, rows: ShardRows, decoded: int) -> float:
    """Return the least number of steps with prompts of others while one of these rows decodes so many tokens, if drafts
    pay. Rows then end one by one, each with a step of its own for its successor, in which nobody drafts."""
    if plan.drafter is None or not plan.should_draft(rows):
        return 0.0
    tokens = plan.drafter.tokens
    # Steps after which another has ended.
    ends = 1 - max(1 - tokens / max(decoded, 1), 0.0) ** (rows.count - 1)
    return ends * decoded / (tokens + ends)


def _mixed_seconds(plan: MeshPlan, tokens: int, prompts: int, decoding: ShardRows) -> float:
    """Estimate the seconds of a step with so many prompts, or with the middle part of a prompt that is longer than a
    step."""
    chunk = min(tokens, plan.shapes.max_num_batched_tokens)
    return plan.mixed_time(ShardRows(prompts, chunk, (tokens - chunk) // 2), decoding).seconds


def decode_round(plan: MeshPlan, batch: int, length: int) -> Round:
    """Steps of a pipeline after which each of `batch` requests, of all shards, has one token more. length: tokens that
    each has."""
    return steady_round([plan.staged_step(rows) for rows in _shares(plan, -(-batch // plan.mesh.data), length)])


def _shares(plan: MeshPlan, rows: int, length: int) -> Iterator[ShardRows]:
    """A shard's rows, as the steps of a pipeline share them out (`StageRows.due`); of fewer than stages one a step."""
    steps = min(plan.mesh.stages, rows)
    for turn in range(steps):
        yield ShardRows(rows * (turn + 1) // steps - rows * turn // steps, 1, length)


class _Prompts(NamedTuple):
    """Prompts of a shard of a pipeline in the steady state. steps: number that compute a prompt, beside others. tokens:
    of prompts in a step, on average. most: in any step."""

    steps: int
    tokens: float
    most: int

    @property
    def are_all(self) -> bool:
        """True where steps have no room for more prompts."""
        return self.tokens >= self.most


def _of_pipeline(plan: MeshPlan, workload: Workload, batch: int) -> Service:
    """Prompts are spread over steps, so that all take about as long. A row decodes once a round, which has as many
    steps as there are stages."""
    rows, decoded, stages = -(-batch // plan.mesh.data), workload.tokens_out - 1, plan.mesh.stages
    if not decoded:
        return _of_prompts(plan, workload, batch)
    prompts = _prompts(plan, workload, rows)
    # Of a request's steps, those by which it draws all but its first token, and those until the last of them is back.
    life = prompts.steps + stages * (decoded + 1)
    if prompts.are_all:
        decoding = prompts.most / workload.tokens_in * stages * decoded
    else:
        decoding = rows * stages * decoded / life
    seconds = _round_seconds(plan, workload, min(max(round(decoding), 1), rows), prompts)
    ttft = plan.prefill(workload.tokens_in)
    if prompts.are_all:
        rate = plan.mesh.data * prompts.most / workload.tokens_in * workload.tokens_out * stages / seconds
    else:
        begins = ttft if rows == 1 else (life / stages - decoded) * seconds
        rate = batch * workload.tokens_out / (begins + decoded * seconds)
    return Service(batch, ttft, seconds, rate)


def _of_prompts(plan: MeshPlan, workload: Workload, batch: int) -> Service:
    """Requests of one token: steps are full of prompts, or each request waits for its own."""
    waiting, stages = -(-batch // plan.mesh.data) * workload.tokens_in, plan.mesh.stages
    chunk = min(waiting, prompt_share(waiting, stages, plan.shapes.max_num_batched_tokens, decoding=False))
    seconds = steady_round([plan.staged_step(_chunk_rows(chunk, workload.tokens_in))] * stages).seconds
    ttft = plan.prefill(workload.tokens_in)
    full = plan.mesh.data * chunk / workload.tokens_in * stages / seconds
    return Service(batch, ttft, 0.0, min(full, batch / ttft))


def _chunk_rows(tokens: int, prompt: int) -> ShardRows:
    """Tokens of a step that are of prompts: whole ones, or the middle of one."""
    count = -(-tokens // prompt)
    return ShardRows(count, tokens // count, (prompt - tokens // count) // 2)


def _prompts(plan: MeshPlan, workload: Workload, rows: int) -> _Prompts:
    """Estimate the prompts of a step by iteration: they depend on how long requests take, and that on how long prompts
    wait for those before them."""
    stages, decoded = plan.mesh.stages, workload.tokens_out - 1
    most = max(plan.shapes.max_num_batched_tokens - -(-rows // stages), 1)
    tokens, steps = 0.0, 1
    for _ in range(_REPEATS):
        waiting = _waiting_tokens(tokens, workload.tokens_in, prompt_steps(stages, decoding=True))
        steps = _steps_of_prompt(workload.tokens_in, waiting, stages, most)
        tokens = (rows - 1) * workload.tokens_in / (steps + stages * (decoded + 1))
    return _Prompts(steps, min(tokens, most), most)


def _waiting_tokens(tokens: float, prompt: int, spread: int) -> int:
    """Estimate the tokens of waiting prompts, if `tokens` come in the time of a step. A step spreads them all over
    `spread` steps, but takes at least `LEAST_PROMPT_TOKENS`: if fewer come, prompts wait as in a queue that is served
    at that rate (M/D/1)."""
    load, spread_out = tokens / LEAST_PROMPT_TOKENS, tokens * spread
    return int(spread_out if load >= 1 else min(spread_out, prompt * load / (2 * (1 - load))))


def _steps_of_prompt(tokens: int, waiting: int, stages: int, most: int) -> int:
    """Until a prompt is computed behind so many tokens of others, which more come after."""
    left, steps = tokens + waiting, 0
    while left > 0:
        left -= prompt_share(max(left, waiting), stages, most, decoding=True)
        steps += 1
    return steps


def _round_seconds(plan: MeshPlan, workload: Workload, decoding: int, prompts: _Prompts) -> float:
    """Estimate the seconds of a round, on average: few tokens of prompts come together, so that some steps have them
    and others none."""
    chunk = min(max(round(prompts.tokens), min(LEAST_PROMPT_TOKENS, workload.tokens_in)), prompts.most)
    share = min(prompts.tokens / chunk, 1.0)
    shares = list(_shares(plan, decoding, workload.middle))
    seconds = 0.0
    if share < 1:
        seconds += (1 - share) * steady_round([plan.staged_step(rows) for rows in shares]).seconds
    if share:
        mixed = _chunk_rows(chunk, workload.tokens_in)
        seconds += share * steady_round([plan.staged_step(mixed, *rows) for rows in _padded(shares, plan)]).seconds
    return seconds


def _padded(shares: Sequence[ShardRows], plan: MeshPlan) -> list[tuple[ShardRows, ...]]:
    """A round of as many steps as there are stages, some of which may have no rows that decode."""
    return [(rows,) for rows in shares] + [()] * (plan.mesh.stages - len(shares))
