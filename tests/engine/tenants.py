"""Requests of tenants, and an engine that notes whose it admits."""

from collections import Counter
from dataclasses import replace
from typing import Any

from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.engine.sequence import Sequence
from jaxinfer.engine.types import GenerateRequest
from tests.engine.small import Got, ask, small_core, small_shapes, step


def asked_by(tenant: str, name: str, prompt: int = 5, tokens: int = 6, priority: int = 0) -> GenerateRequest:
    request = ask(f"{tenant}-{name}", prompt, tokens)
    return replace(request, tenant=tuple(tenant.split("/")), priority=priority)


class Watched:
    """An engine whose admissions are noted in their order."""

    def __init__(self, *, slots: int = 4, tokens: int = 16, ahead: int = 1, blocks: int = 200, **config: Any):
        shapes = small_shapes(blocks, max_num_seqs=slots, max_num_batched_tokens=tokens, max_scored=max(slots, 4))
        self.core = small_core(SimulatedRunner(shapes, draws=False), ahead=ahead, max_waiting=5000, **config)
        self.admitted: list[str] = []
        self.charged: Counter[tuple[str, ...]] = Counter()
        self.got: Got = {}
        self.steps = 0
        admit = self.core.scheduler.state.admit

        def noted(sequence: Sequence, *, computed: int, total: int) -> None:
            if sequence.scheduled_at is None:
                self.admitted.append(sequence.request_id)
            admit(sequence, computed=computed, total=total)
            self.charged[sequence.tenant[:1]] += sequence.charged

        self.core.scheduler.state.admit = noted  # type: ignore[method-assign]

    def step(self) -> None:
        step(self.core, self.got)
        self.steps += 1

    def steps_to_first_token(self, request: GenerateRequest) -> int:
        self.core.add_request(request)
        start = self.steps
        while not self.got.get((request.request_id, 0)):
            self.step()
        return self.steps - start
