"""Random histories on real programs, with NaN in every page and tail that nobody may read."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.sequence import Status
from jaxinfer.engine.step.packed import PackedForward, PackedMultiStep
from jaxinfer.engine.types import FinishReason, GenerateRequest
from jaxinfer.errors import ParameterError
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.sampling import SamplingParams
from tests.draws import history_settings, run_state_machines
from tests.engine.ledger import check_pages, check_slots, live_requests
from tests.engine.stepping import step_deltas
from tests.runner.tiny import VOCABULARY, Judge, Output, make_core, tiny_model, tiny_shapes

EOS = tuple(range(100, 110))
PAGE = 4


class PoisoningRunner(JaxRunner):
    """After each step puts NaN wherever no later step may read before it has written.

    That is every page that is free then, the scratch page, and what lies behind the newest position in pages in use.
    """

    core: EngineCore

    def sample(self, step: PackedForward) -> Any:
        handle = super().sample(step)
        self._poison_pages()
        return handle

    def decode_steps(self, step: PackedMultiStep) -> Any:
        handle = super().decode_steps(step)
        self._poison_pages()
        return handle

    def _poison_pages(self) -> None:
        """The device runs this after the step, and before the next one."""
        self.kv = tuple(_poison(kv, self._unread(group)) for group, kv in enumerate(self.kv))

    def _unread(self, group: int) -> np.ndarray:
        """bool [pages, page]: what holds nothing of use."""
        pool, table = self.core.scheduler.state.kv.pools[group], self.core.scheduler.state.table
        used = np.zeros(pool.num_pages, np.int32)
        for request in live_requests(self.core):
            computed = int(table.computed[request.slot]) if request.slot >= 0 else request.fork_computed
            for i, page in enumerate(request.pages[group]):
                if page:
                    used[page] = max(used[page], min(PAGE, computed - i * PAGE))
        used[self.core.scheduler.state.kv.tree.pages(group)] = PAGE
        return np.arange(PAGE) >= used[:, None]


@partial(jax.jit, donate_argnums=0)
def _poison(kv: jax.Array, unread: jax.Array) -> jax.Array:
    return jnp.where(unread[None, None, :, :, None, None], jnp.nan, kv)


@cache
def runner(windows: tuple[int | None, ...]) -> PoisoningRunner:
    """Three rows of 48 tokens at most, and pages for less than that."""
    model = tiny_model(windows)
    sizes = {"max_num_seqs": 3, "max_num_batched_tokens": 16, "max_model_len": 48, "pages": 20}
    made = PoisoningRunner(model, tiny_shapes(model, **sizes, page_size=PAGE, admit_slots=2, copy_pages=2))
    made.warm_up(lazy=True)
    return made


@cache
def judge(windows: tuple[int | None, ...]) -> Judge:
    return Judge(runner(windows).model, 48)


class Histories(RuleBasedStateMachine):
    """Requests come, run, stop, are aborted, preempted and forked, while pages are evicted under them."""

    @initialize(
        windows=st.sampled_from([(None, None), (None, 5)]),
        ahead=st.sampled_from([0, 1, 3]),
        caching=st.booleans(),
        chunk=st.sampled_from([None, 1, 3]),
    )
    def start(self, windows, ahead, caching, chunk) -> None:
        self.windows = windows
        self.core = make_core(
            runner(windows), ahead=ahead, caching=caching, eos=EOS, long_prefill_token_threshold=chunk
        )
        runner(windows).core = self.core
        self.requests: dict[str, GenerateRequest] = {}
        self.got: dict[tuple[str, int], Output] = {}
        self.interrupted: set[tuple[str, int]] = set()

    @rule(
        shared=st.integers(0, 20),
        own=st.lists(st.integers(0, VOCABULARY - 1), max_size=8),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        tokens=st.integers(1, 16),
        seed=st.integers(0, 2**63 - 1),
        temperature=st.sampled_from([0.0, 1.0]),
        penalty=st.sampled_from([1.0, 1.2]),
        ignore_eos=st.booleans(),
        prompt_logprobs=st.sampled_from([None, None, None, 1]),
        salt=st.sampled_from(["", "", "tenant"]),
    )
    def add(self, shared, own, n, tokens, seed, temperature, penalty, ignore_eos, prompt_logprobs, salt) -> None:
        params = SamplingParams(
            n=n,
            max_tokens=tokens,
            seed=seed,
            temperature=temperature,
            repetition_penalty=penalty,
            ignore_eos=ignore_eos,
            prompt_logprobs=prompt_logprobs,
        )
        name = f"r{len(self.requests)}"
        request = GenerateRequest(name, [*range(1, shared + 1), *own] or [1], params, cache_salt=salt)
        try:
            self.core.add_request(request)
        except ParameterError as error:
            if error.param != "max_tokens":  # more than all pages hold
                raise
            return
        self.requests[name] = request
        self.got |= {(name, choice): Output() for choice in range(n)}

    @rule(steps=st.integers(1, 6))
    def step(self, steps) -> None:
        for _ in range(steps):
            self._take()

    @precondition(lambda self: self.core._choices)
    @rule(data=st.data())
    def abort(self, data) -> None:
        name = data.draw(st.sampled_from(sorted(self.core._choices)))
        self.interrupted |= {key for key, output in self.got.items() if key[0] == name and output.reason is None}
        self.core.abort(name)

    @precondition(lambda self: self._running())
    @rule(data=st.data())
    def stop(self, data) -> None:
        request = data.draw(st.sampled_from(self._running()))
        if not request.is_parent:
            self.interrupted.add((request.request_id, request.index))
            self.core.stop(request.request_id, request.index)

    @precondition(lambda self: self._running())
    @rule(data=st.data())
    def preempt(self, data) -> None:
        self.core.scheduler.state.preempt(data.draw(st.sampled_from(self._running())))

    @rule(group=st.integers(0, 1), share=st.floats(0, 1))
    def evict(self, group, share) -> None:
        kv = self.core.scheduler.state.kv
        group %= len(kv.pools)
        kv.tree.evict(group, int(share * kv.pools[group].num_evictable))

    @invariant()
    def pages_add_up(self) -> None:
        if hasattr(self, "core"):
            check_pages(self.core)
            check_slots(self.core)

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        for _ in range(3000):
            if not self.core.has_work():
                break
            self._take()
            self.pages_add_up()
        assert not self.core.has_work(), "the engine hangs"
        assert all(pool.num_in_use == 0 for pool in self.core.scheduler.state.kv.pools)
        flips = sum(len(self._check(*key)) for key in self.got)
        if flips:
            print(f"{flips} tokens diverge at near ties")

    def _take(self) -> None:
        for delta in step_deltas(self.core):
            self.got[delta.request_id, delta.index].take(delta)

    def _check(self, name: str, index: int) -> list[int]:
        """Every token is the one that dense attention over what came before gives, and the end is where it belongs."""
        request, output = self.requests[name], self.got[name, index]
        params = request.sampling
        ends = set() if params.ignore_eos else set(EOS)
        assert output.error is None
        assert not ends & set(output.tokens[:-1])
        if (name, index) not in self.interrupted:
            stopped = output.tokens[-1] in ends
            assert output.reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)
            assert stopped or len(output.tokens) == params.max_tokens
        return judge(self.windows).flips(request, index, output) if output.tokens else []

    def _running(self) -> list:
        return [request for request in live_requests(self.core) if request.status is Status.RUNNING]


def test_random_histories() -> None:
    run_state_machine_as_test(Histories, settings=history_settings(25))


@pytest.mark.long
def test_more_random_histories() -> None:
    run_state_machines(Histories, 5)
