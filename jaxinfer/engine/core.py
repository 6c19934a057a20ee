"""EngineCore: the loop of schedule, dispatch, collect. One thread calls it."""

import itertools
import logging
import random
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial

import numpy as np

from jaxinfer.config import CacheConfig, SchedulerConfig
from jaxinfer.engine.client_ids import client_id_of, sequence_id_of
from jaxinfer.engine.constraint import Constraints, ConstraintStats, Matcher, MatcherError
from jaxinfer.engine.device.calls import Reset
from jaxinfer.engine.device.in_flight import InFlightSteps, ReadDrafts, StepFault
from jaxinfer.engine.device.runner import Drafts, Runner
from jaxinfer.engine.fast_forward import FastForward, ForcedRun
from jaxinfer.engine.kv.manager import BlockRefs
from jaxinfer.engine.masks import MaskError, StepMasks
from jaxinfer.engine.results import apply_result
from jaxinfer.engine.scheduler.policy import Policy
from jaxinfer.engine.scheduler.queue_limit import TenantCounts
from jaxinfer.engine.scheduler.scheduler import Scheduler
from jaxinfer.engine.sequence import Sequence
from jaxinfer.engine.stats.counters import CoreStats, EngineStats, totals
from jaxinfer.engine.stats.drafts import DraftTotals
from jaxinfer.engine.stats.hosts import HostReading
from jaxinfer.engine.stats.stats import read_stats
from jaxinfer.engine.stats.step_cost import StepCosts, StepCostTotals
from jaxinfer.engine.stats.step_timer import APPLY, CONSTRAIN, DISPATCH, OTHER, SCHEDULE, WAIT, StepTimer
from jaxinfer.engine.step.plan import StepKind, StepPlan
from jaxinfer.engine.token_rules import RuledMatcher
from jaxinfer.engine.types import (
    FinishReason,
    GenerateRequest,
    ModelInfo,
    StepOutput,
    TokenDelta,
    output_of,
)
from jaxinfer.engine.validation import CheckedRequest, check_request
from jaxinfer.errors import JaxinferError, ParameterError

log = logging.getLogger(__name__)


class EngineCore:
    """Continuous batching over a Runner.

    steps_ahead: steps dispatched and not read when the next one is planned: 1 hides the host's work
    behind the device's, 0 reads every step before the next is planned. policy: by default what `scheduler` names.
    clock: nanoseconds that only grow. costs: of the model's steps, for the totals of operations and bytes. constraints:
    of requests that may not draw any token; None: they are refused.
    """

    def __init__(
        self,
        runner: Runner,
        info: ModelInfo,
        *,
        scheduler: SchedulerConfig | None = None,
        cache: CacheConfig | None = None,
        policy: Policy | None = None,
        eos_ids: tuple[int, ...] = (),
        seed: int = 0,
        steps_ahead: int | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        costs: StepCosts | None = None,
        constraints: Constraints | None = None,
        hosts: Callable[[], Iterable[HostReading]] = tuple,
    ):
        self.runner = runner
        self._hosts = hosts
        self.info = info
        config = scheduler or SchedulerConfig(max_num_seqs=runner.shapes.max_num_seqs)
        self.scheduler = Scheduler(runner.shapes, config, cache or CacheConfig(), policy, clock)
        self.steps_ahead = config.overlap * runner.shapes.stages if steps_ahead is None else steps_ahead
        self.step_timeout = config.step_timeout
        self.eos_ids = eos_ids
        self._random = random.Random(seed)
        self.in_flight = InFlightSteps(runner)
        self.timer = StepTimer()
        self.costs = StepCostTotals(runner.shapes, costs, lambda: runner.buckets)
        self._sequences: dict[str, list[Sequence]] = {}
        self._retiring: dict[str, int] = {}
        self._ended: list[TokenDelta] = []
        self._arrivals = itertools.count()
        self._next_sequence = 0
        self.counters = totals(CoreStats)
        self.drafts = DraftTotals(0 if runner.shapes.drafting is None else runner.shapes.drafting.tokens)
        self.constraints = constraints
        self._masks = StepMasks(runner.shapes, self.scheduler.state.table, constraints)
        self._fast_forward = None
        if config.fast_forward:
            self._fast_forward = FastForward(self.scheduler.state, runner)

    @property
    def num_waiting(self) -> int:
        """Requests of which a sequence waits for a slot."""
        return self.scheduler.state.queue.num_requests

    def check(self, request: GenerateRequest) -> CheckedRequest:
        """Raises ParameterError where a request can never be served. Safe in any thread."""
        uses_priority = self.scheduler.policy.uses_priority
        checked = check_request(request, self.runner.shapes, eos_ids=self.eos_ids, uses_priority=uses_priority)
        if not checked.is_constrained:
            return checked
        if self.constraints is None:
            raise ParameterError("structured_outputs", "this engine has no tokenizer to constrain texts with")
        return checked._replace(arrival=next(self._arrivals))

    def is_kept(self, checked: CheckedRequest) -> bool:
        """Return whether `compile` has next to nothing to do. Safe in any thread."""
        return self.constraints is not None and self.constraints.is_kept(checked.request.sampling, checked.stop_ids)

    def compile(self, checked: CheckedRequest) -> CheckedRequest:
        """Add the request's matcher, if it asks for one. May take a while; safe in any thread. Raises
        ParameterError."""
        if not checked.is_constrained or checked.matcher is not None:
            return checked
        assert self.constraints is not None
        matcher, rules = self.constraints.compile(checked.request.sampling, checked.stop_ids), checked.rules
        return checked._replace(matcher=matcher if rules is None else RuledMatcher(rules, matcher))

    def tenant_of(self, request: GenerateRequest) -> tuple[str, ...]:
        """Whose request it is, as far as tenants are told apart. Safe in any thread."""
        return self.scheduler.tenant_of(request.tenant)

    def check_room(self, request: GenerateRequest, *submitted: TenantCounts) -> None:
        """Raise QueueFullError if too many requests wait for another of its tenant, or if it is likely to wait too
        long. Safe in any thread.

        submitted: requests that are to be queued before it.
        """
        self.scheduler.check_room(self.tenant_of(request), request.max_expected_wait, *submitted)

    def is_retiring(self, request_id: str) -> bool:
        """True while an ended request's id is taken still, by results in flight: a step or two."""
        return request_id in self._retiring

    def add_request(self, request: GenerateRequest) -> None:
        """Queues a request. Raises ParameterError where it can never be served, QueueFullError where too many wait."""
        self.check_room(request)
        self.add(self.compile(self.check(request)))

    def add(self, checked: CheckedRequest, *, client_id: int = 0) -> None:
        """Queues a request that was checked and compiled. Raises ParameterError where its id is in use, QueueFullError.

        client_id: the client that its deltas are for, as its sequence ids name it (client_ids.py).
        """
        request, params = checked.request, checked.request.sampling
        if request.request_id in self._sequences or request.request_id in self._retiring:
            raise ParameterError("request_id", f"{request.request_id!r} is in use")
        self.scheduler.check_room(self.tenant_of(request), None)  # how long it is likely to wait was checked before
        parent = Sequence(
            request.request_id,
            checked.ids,
            params,
            limit=checked.limit,
            seed=self._random.getrandbits(64) if params.seed is None else params.seed,
            stop_ids=checked.stop_ids,
            arrival=next(self._arrivals) if checked.arrival is None else checked.arrival,
            kv=BlockRefs(len(self.runner.shapes.groups), ("", request.cache_salt)),
            sequence_id=sequence_id_of(client_id, self._next_sequence),
            priority=request.priority,
            tenant=request.tenant,
            prediction=checked.prediction,
            fork_to=params.n,
            matcher=checked.matcher,
        )
        self._next_sequence += params.n
        self.counters.prompt_tokens += parent.prompt_len
        self._sequences[request.request_id] = [parent]
        self.scheduler.add(parent, request.max_wait)

    def has_work(self) -> bool:
        """True while a call of `step` can make progress."""
        return bool(self._sequences or self.in_flight or self._ended)

    def step(self) -> list[StepOutput]:
        """Plans and dispatches a step, reads the steps that are due, and returns what each of them gave.

        Where the runner fails, every step that was not read is void, and its sequences are queued again or, after too
        many failures, ended with an error. Raises what the runner raises where it cannot be reset.
        """
        self.timer.end(OTHER)
        plan = self.scheduler.schedule()
        self._register_forks()
        self._end_expired()  # whoever has just got a slot is in time
        self.timer.end(SCHEDULE)
        outputs, self._ended = [output_of(self._ended)] if self._ended else [], []
        try:
            self._run(plan, outputs)
        except StepFault as fault:
            cause = fault.__cause__
            expected = isinstance(cause, JaxinferError)  # it says all: another host is lost
            log.error(
                "a step failed; its requests are tried again, or end: %s", cause, exc_info=None if expected else cause
            )
            failure = str(fault)
        else:
            return outputs
        # NOTE: not before the error is gone, whose frames may hold arrays of the device.
        self._recover(failure)
        return outputs

    def stop(self, request_id: str, index: int) -> None:
        """Ends one sequence because of a stop string; who found it knows how many of its tokens are kept."""
        for sequence in self._sequences.get(request_id, []):
            if sequence.index == index and not sequence.finished and not sequence.is_parent:
                self._end(sequence, FinishReason.STOP)
                self._retire(request_id)

    def abort(self, request_id: str) -> None:
        """Ends every sequence of a request. Unknown ids are ignored."""
        for sequence in self._sequences.get(request_id, []):
            if not sequence.finished:
                self._end(sequence, FinishReason.ABORT)
        self._retire(request_id)

    def abort_client(self, client_id: int) -> None:
        """Ends every request that was added for `client_id`, which has gone."""
        left = [id for id, sequences in self._sequences.items() if client_id_of(sequences[0].sequence_id) == client_id]
        for request_id in left:
            self.abort(request_id)
        self.counters.abandoned_requests += len(left)

    def abort_all(self) -> None:
        """Ends every request."""
        for request_id in list(self._sequences):
            self.abort(request_id)

    def stats(self) -> EngineStats:
        """Gauges now, totals since start. Safe in any thread."""
        self.counters.steps = self.in_flight.dispatched
        compiled = ConstraintStats() if self.constraints is None else self.constraints.stats()
        parts = (self.scheduler, self.runner, self.timer, self.costs, self.counters)
        return read_stats(*parts, compiled, self.drafts, self._hosts())

    def close(self) -> None:
        """Frees the device. Requests must have been aborted."""
        if self.constraints is not None:
            self.constraints.close()
        self.runner.close()

    def _run(self, plan: StepPlan | None, outputs: list[StepOutput]) -> None:
        if plan is not None:
            constrained = self._masks.rows(plan)
            self.in_flight.dispatch(
                plan, partial(self._constrain, plan, constrained, outputs) if len(constrained) else None
            )
            self.costs.add(plan)
            self.timer.end(DISPATCH)
            self.timer.in_flight = True
        keep = self._steps_kept(plan)
        while len(self.in_flight) > keep:
            outputs.append(self._collect())

    def _steps_kept(self, plan: StepPlan | None) -> int:
        """Return how many steps stay in flight after a plan."""
        if self.scheduler.state.must_drain:
            return 0
        if plan is not None:
            return self.steps_ahead
        # Of several stages the oldest result alone is read: with its rows the first goes on, while others compute.
        return max(len(self.in_flight) - 1, 0) if self.runner.shapes.stages > 1 else 0

    def _constrain(
        self, plan: StepPlan, rows: np.ndarray, outputs: list[StepOutput], read: ReadDrafts | None
    ) -> np.ndarray:
        """Has these rows of a plan, whose forward pass is under way, draw what their sequences may say. read: of
        `BeforeSampling`, as what is returned."""
        counts = np.full(plan.num_rows, self.runner.shapes.row_tokens - 1, np.int32)
        counts[rows] = 0
        held = self._held(plan, rows, outputs)
        if len(held) and read is None:
            slots = plan.slots[held]
            # The device knows where the rows that it holds are, and the host since it has collected what they drew.
            known = self.scheduler.state.table.known[slots]
            self._send_masks(slots, np.where(held < plan.num_decode, known, (plan.starts + plan.counts)[held]))
        elif len(held) and read is not None:
            drafts = self._read_drafts(read)
            told = [drafts.tokens[row, : drafts.counts[row]].tolist() for row in held.tolist()]
            counts[held] = self._send_masks_with_drafts(plan.slots[held], told)
        self.timer.end(CONSTRAIN)
        return counts

    def _read_drafts(self, read: ReadDrafts) -> Drafts:
        """Waits for the drafts that masks follow from."""
        before = self.timer.seconds(WAIT)
        drafts = read()
        self.timer.end(WAIT)
        self.counters.mask_wait_seconds += self.timer.seconds(WAIT) - before
        return drafts

    def _send_masks_with_drafts(self, slots: np.ndarray, drafts: list[list[int]]) -> list[int]:
        """drafts: of each slot's sequence. Returns how many of them may be kept."""
        sequences = [self._sequence_in(slot) for slot in slots.tolist()]
        matchers = [_matcher_at(sequence, sequence.num_known) for sequence in sequences]
        legal, errors = self._masks.send_with_drafts(self.in_flight, sequences, matchers, drafts)
        if self._fast_forward is not None and self.scheduler.drafts is not None:
            # What is forced beyond the next step's tokens is computed at once, by a plain step.
            runs = _forced_runs(sequences, matchers, errors.keys())
            long = [
                run
                for run in self._fast_forward.worthwhile(runs)
                if len(run.tokens) > 2 * self.runner.shapes.row_tokens
            ]
            self.scheduler.state.table.plain_next[[run.sequence.slot for run in long]] = True
        for number, error in errors.items():
            self._fail(sequences[number], error)
        return legal

    def _held(self, plan: StepPlan, rows: np.ndarray, outputs: list[StepOutput]) -> np.ndarray:
        """Return the rows whose sequences have not ended. Steps that sample for these rows are collected first, since
        their tokens must be known."""
        slots, epochs, table = plan.slots[rows], plan.epochs[rows], self.scheduler.state.table
        self.timer.end(DISPATCH)
        before = self.timer.seconds(WAIT) + self.timer.seconds(APPLY)
        while self.in_flight.sample_for(slots, epochs):
            outputs.append(self._collect())
        self.counters.mask_wait_seconds += self.timer.seconds(WAIT) + self.timer.seconds(APPLY) - before
        return rows[table.epoch[slots] == epochs]

    def _sequence_in(self, slot: int) -> Sequence:
        sequence = self.scheduler.state.table.sequences[slot]
        assert sequence is not None
        return sequence

    def _send_masks(self, slots: np.ndarray, ends: np.ndarray) -> None:
        """ends: positions at which the sequences in these slots are to draw."""
        table = self.scheduler.state.table
        sequences, matchers = list[Sequence](), list[Matcher]()
        for slot, end in zip(slots.tolist(), ends.tolist(), strict=True):
            if (sequence := table.sequences[slot]) is not None:
                try:
                    matchers.append(_matcher_at(sequence, end))
                except MatcherError as error:
                    self._fail(sequence, MaskError(str(error), sequence.constraint_param))
                else:
                    sequences.append(sequence)
        errors = self._masks.send(self.in_flight, sequences, matchers)
        if self._fast_forward is not None:
            foreseen = self._fast_forward.plan(_forced_runs(sequences, matchers, errors.keys()))
            self.counters.forced_tokens += sum(len(run.tokens) - 1 for run in foreseen)
            if self.scheduler.drafts is not None:
                self.in_flight.set_history(foreseen)
        for number, error in errors.items():
            self._fail(sequences[number], error)

    def _fail(self, sequence: Sequence, error: MaskError) -> None:
        """Ends a sequence that can draw nothing."""
        self.counters.constraint_failures += 1
        self._end(sequence, FinishReason.ERROR, error.text, error.param)
        self._retire(sequence.request_id)

    def _end_expired(self) -> None:
        """End requests that have waited for their first slot for as long as they may."""
        for sequence in self.scheduler.expired():
            self._end(sequence, FinishReason.TIMEOUT)
            self._retire(sequence.request_id)

    def _recover(self, failure: str) -> None:
        self.counters.step_faults += 1
        discarded = self.in_flight.discard()
        self.timer.in_flight = False
        self._retiring.clear()
        self.runner.submit(Reset())
        self._masks.forget()
        for sequence in self.scheduler.retry(discarded):
            error = f"computing the next token failed with {failure} (tries: {sequence.failures})"
            self._end(sequence, FinishReason.ERROR, error)
            self._retire(sequence.request_id)

    def _collect(self) -> StepOutput:
        plan, result = self.in_flight.collect()
        self.timer.end(WAIT)
        self.timer.in_flight = bool(self.in_flight)
        self.scheduler.state.in_flight -= 1
        if self.scheduler.drafts is not None:
            self.scheduler.drafts.collected(plan, result)
            self.drafts.add(result)
        if plan.kind is StepKind.SPECULATE:
            self.costs.add_drafted(plan, result)
        output = apply_result(self.scheduler.state, plan, result)
        self.counters.generation_tokens += output.num_tokens
        for delta in output.deltas:
            if delta.finish_reason is not None:
                self._retire(delta.request_id)
                self.counters.constraint_failures += delta.param is not None
        for request_id in [name for name, last in self._retiring.items() if last <= self.in_flight.collected]:
            del self._retiring[request_id]
        if not self.in_flight:
            self.costs.count()
        self.timer.end(APPLY)
        return output

    def _end(
        self, sequence: Sequence, reason: FinishReason, error: str | None = None, param: str | None = None
    ) -> None:
        sequence.finish_reason = reason
        self.scheduler.state.finish(sequence)
        for i in range(sequence.fork_to):
            self._ended.append(
                TokenDelta(
                    sequence.request_id,
                    sequence.index + i,
                    [],
                    finish_reason=reason,
                    error=error,
                    param=param,
                    sequence_id=sequence.sequence_id + i,
                    preemptions=sequence.preemptions,
                )
            )

    def _retire(self, request_id: str) -> None:
        """Forgets a request whose sequences have all ended, once no result of its is in flight."""
        sequences = self._sequences.get(request_id)
        if sequences is not None and all(sequence.finished for sequence in sequences):
            del self._sequences[request_id]
            if self.in_flight:
                self._retiring[request_id] = self.in_flight.dispatched

    def _register_forks(self) -> None:
        new_sequences = self.scheduler.state.forks.new_sequences
        for sequence in new_sequences:
            self._sequences[sequence.request_id].append(sequence)
        new_sequences.clear()


def _forced_runs(sequences: list[Sequence], matchers: list[Matcher], failed: Collection[int]) -> list[ForcedRun]:
    """Return the tokens that these sequences must draw, without failed ones, which are given by their numbers."""
    drawing = [number for number in range(len(sequences)) if number not in failed]
    return [ForcedRun(sequences[number], np.array(matchers[number].forced(), np.int32)) for number in drawing]


def _matcher_at(sequence: Sequence, end: int) -> Matcher:
    """Return the matcher of a sequence at position `end`: its own has seen confirmed tokens alone, no foreseen ones.
    Raises MatcherError."""
    assert sequence.matcher is not None
    assert sequence.table is not None
    foreseen = sequence.table.tokens[sequence.slot, sequence.num_known : end]
    if not len(foreseen):
        return sequence.matcher
    ahead = sequence.matcher.copy()
    ahead.accept(foreseen.tolist())
    return ahead
