"""Random histories of an engine, on whatever device: a machine that acts, and checks against a model of the rules."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.sequence import Sequence, Status
from jaxinfer.engine.types import FinishReason, GenerateRequest, TokenDelta
from jaxinfer.errors import ParameterError
from jaxinfer.sampling import SamplingParams
from tests.engine.ledger import check_blocks, check_options, check_slots, live_names, live_sequences
from tests.engine.outputs import Output, Outputs
from tests.engine.rules_model import RULES
from tests.engine.stepping import step_deltas
from tests.engine.toy_grammar import Toy


def is_dead_end(error: str | None) -> bool:
    """Whether a sequence ended since its rules left nothing to draw."""
    return error is not None and error.startswith("no token is left that may be drawn next")


class Histories(RuleBasedStateMachine):
    """Requests come, run, stop, are aborted, preempted and forked, while blocks are evicted under them.

    A subclass begins with an engine, in a rule that calls `begin`, and says in `check_tokens` which tokens are right.
    """

    def begin(
        self,
        core: EngineCore,
        *,
        eos: tuple[int, ...],
        retries: int = 0,
        partial: int | None = None,
        kept: int | None = None,
    ) -> None:
        """retries, partial, kept: max_step_retries, max_num_partial_prefills and prefix_cache_max_tokens of `core`."""
        self.core, self.eos, self.retries, self.partial, self.kept = core, eos, retries, partial, kept
        self.made = 0
        self.requests: dict[str, GenerateRequest] = {}
        self.outputs: Outputs = {}
        self.interrupted: set[tuple[str, int]] = set()

    def check_tokens(self, request: GenerateRequest, index: int, output: Output) -> None:
        """Asserts that each token is right; the end has been checked, and may have come early."""
        raise NotImplementedError

    @rule(
        shared=st.integers(0, 20),
        own=st.lists(st.integers(0, 299), max_size=8),
        n=st.sampled_from([1, 1, 1, 2, 4, 7]),
        tokens=st.integers(1, 16),
        seed=st.integers(0, 2**63 - 1),
        ignore_eos=st.booleans(),
        prompt_logprobs=st.sampled_from([None, None, None, 1]),
        salt=st.sampled_from(["", "", "tenant"]),
        priority=st.integers(-2, 2),
        temperature=st.sampled_from([0.0, 1.0]),
        penalty=st.sampled_from([1.0, 1.2]),
        toy=st.sampled_from([None, None, Toy(3, 5), Toy(8, 14)]),
        rules=st.sampled_from(["none", "none", *RULES]),
        min_tokens=st.sampled_from([0, 0, 3]),
    )
    def add(
        self, shared, own, n, tokens, seed, ignore_eos, prompt_logprobs, salt, priority=0, temperature=1.0, penalty=1.0,
        toy=None, rules="none", min_tokens=0,
    ) -> None:  # fmt: skip
        params = SamplingParams(
            n=n,
            max_tokens=tokens,
            seed=seed,
            temperature=temperature,
            repetition_penalty=penalty,
            ignore_eos=ignore_eos,
            prompt_logprobs=prompt_logprobs,
            structured_outputs=None if toy is None or self.core.constraints is None else toy.constraint,
            # The simulated device knows nothing of it: rules do.
            min_tokens=0 if rules == "none" else min(min_tokens, tokens),
            **RULES[rules],
        )
        prompt = [*range(1, shared + 1), *(token % self.core.info.vocab_size for token in own)] or [1]
        priority = priority if self.core.scheduler.policy.uses_priority else 0
        request = GenerateRequest(f"r{self.made}", prompt, params, priority, salt)
        self.made += 1
        try:
            self.core.add_request(request)
        except ParameterError as error:
            if error.param != "max_tokens":  # more than all blocks hold
                raise
            return
        self.requests[request.request_id] = request
        self.outputs |= {(request.request_id, index): Output() for index in range(params.n)}

    @rule(steps=st.integers(1, 6))
    def step(self, steps) -> None:
        for _ in range(steps):
            self.step_once()

    @precondition(lambda self: bool(live_names(self.core)))
    @rule(data=st.data())
    def abort(self, data) -> None:
        self.abort_request(data.draw(st.sampled_from(live_names(self.core))))

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def stop(self, data) -> None:
        self.stop_sequence(data.draw(st.sampled_from(self.running())))

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def preempt(self, data) -> None:
        self.core.scheduler.state.preempt(data.draw(st.sampled_from(self.running())))

    @rule(group=st.integers(0, 1), share=st.floats(0, 1))
    def evict(self, group, share) -> None:
        shards = self.core.scheduler.state.kv_shards
        kv, group = shards[group % len(shards)], group % len(shards[0].pools)
        kv.tree.evict(group, int(share * kv.pools[group].num_evictable))

    @invariant()
    def blocks_add_up(self) -> None:
        check_blocks(self.core)
        check_slots(self.core)
        check_options(self.core, self.partial, self.kept)

    def teardown(self) -> None:
        """Steps until nothing is left, and checks what has come for every sequence."""
        if not hasattr(self, "core"):  # no example was drawn
            return
        for _ in range(3000):
            if not self.core.has_work():
                break
            self.step_once()
            self.blocks_add_up()
        assert not self.core.has_work(), "the engine hangs"
        assert all(pool.num_in_use == 0 for pool in self.core.scheduler.state.kv.pools)
        assert not live_sequences(self.core)
        for (name, index), output in self.outputs.items():
            self._check_end(name, index, output)
            self.check_tokens(self.requests[name], index, output)

    def step_once(self) -> None:
        faults, state = self.core.stats().core.step_faults, self.core.scheduler.state
        table, kv = state.table, state.kv
        for delta in step_deltas(self.core):
            self._take(delta)
        if self.core.stats().core.step_faults > faults:
            assert not table.num_taken
            assert all(pool.num_free == pool.num_blocks - 1 for pool in kv.pools)

    def abort_request(self, name: str) -> None:
        self.interrupted |= {key for key, output in self.outputs.items() if key[0] == name and output.reason is None}
        self.core.abort(name)

    def stop_sequence(self, sequence: Sequence) -> None:
        if not sequence.is_parent:
            self.interrupted.add((sequence.request_id, sequence.index))
            self.core.stop(sequence.request_id, sequence.index)

    def running(self) -> list[Sequence]:
        return [sequence for sequence in live_sequences(self.core) if sequence.status is Status.RUNNING]

    def _take(self, delta: TokenDelta) -> None:
        self.outputs[delta.request_id, delta.index].take(delta)
        assert (delta.finish_reason is FinishReason.ERROR) == (delta.error is not None)
        if delta.finish_reason is FinishReason.ERROR and not is_dead_end(delta.error):
            assert self.core.stats().core.step_faults > self.retries, delta.error
        if delta.prompt_logprobs is not None:
            assert delta.index == 0
            told = [entry and entry.token_id for entry in delta.prompt_logprobs]
            assert told == [None, *self.requests[delta.request_id].prompt_token_ids[1:]]

    def _check_end(self, name: str, index: int, output: Output) -> None:
        """A sequence ends at its first stop token, or has all tokens that were asked for."""
        params = self.requests[name].sampling
        ends = set() if params.ignore_eos else set(self.eos)
        assert not ends & set(output.tokens[:-1])
        assert output.reason is not None
        if (name, index) not in self.interrupted and output.reason is not FinishReason.ERROR:
            last, toy = output.tokens[-1], Toy.of(params)
            whole = toy is not None and len(output.tokens) == toy.length and last not in ends
            assert output.reason is (FinishReason.STOP if last in ends or whole else FinishReason.LENGTH)
            assert output.stopped_by == (last if last in ends else None)
            assert last in ends or whole or len(output.tokens) == params.max_tokens
