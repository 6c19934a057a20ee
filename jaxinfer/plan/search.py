"""Meshes that are looked for rather than named, and the most requests within limits of time."""

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from jaxinfer.errors import JaxinferError, ParameterError
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.rules import DEFAULT_RULES
from jaxinfer.plan.estimate import MeshPlan
from jaxinfer.plan.service import Service, Workload, service

_WHOLE_EXPERTS = DEFAULT_RULES.with_whole_experts()
MOST_DEVICES = 1024

Planner = Callable[[MeshConfig, str], MeshPlan]
"""Plans a mesh under a name. Raises ParameterError where the model cannot be split so."""


class Limits(NamedTuple):
    """Seconds at most; None: any."""

    ttft: float | None = None
    itl: float | None = None

    def allow(self, found: Service) -> bool:
        """Return whether a service keeps within the limits."""
        pairs = ((found.ttft, self.ttft), (found.itl, self.itl))
        return found.batch > 0 and all(limit is None or seconds <= limit for seconds, limit in pairs)


class Sweep(NamedTuple):
    """left_out: names of meshes that are refused, and why."""

    plans: list[MeshPlan]
    left_out: dict[str, str]


def sweep(devices: int, planner: Planner, *, has_experts: bool) -> Sweep:
    """Every way to share out so many devices between groups (`data`) and parts of the model (`tensor`), by channels of
    experts and by whole experts. Raises ParameterError where all are refused."""
    plans, left_out, refused = [], dict[str, str](), None
    for mesh, name in _meshes(devices, has_experts):
        try:
            plans.append(planner(mesh, name))
        except ParameterError as error:
            refused, left_out[name] = error, str(error)
    if refused is not None and not plans:
        raise refused
    return Sweep(plans, left_out)


def _meshes(devices: int, has_experts: bool) -> Iterator[tuple[MeshConfig, str]]:
    for tensor in (size for size in range(1, devices + 1) if devices % size == 0):
        data = devices // tensor
        name = "-".join([f"data{data}"] * (data > 1) + [f"tp{tensor}"])
        yield MeshConfig({"data": data, "tensor": tensor}), name
        if has_experts and tensor > 1:
            yield MeshConfig({"data": data, "tensor": tensor}, _WHOLE_EXPERTS), name.replace("tp", "ep")


def smallest(planner: Planner, tokens: int) -> MeshPlan:
    """The fewest devices along `tensor`, in powers of two, that hold the model and a request of so many tokens. Raises
    ParameterError where none do."""
    refused = ""
    for size in (1 << power for power in range(MOST_DEVICES.bit_length())):
        try:
            plan = planner(MeshConfig({"tensor": size}), f"tp{size}")
        except ParameterError as error:
            refused = refused or f"; over {size}: {error.message}"
            continue
        if plan.holds(tokens):
            return plan
    raise ParameterError("fit", f"no mesh holds the model and {tokens:,} tokens{refused}")


def first_that_holds(ways: Iterable[tuple[str, Callable[[], MeshPlan]]], tokens: int) -> list[str]:
    """The name of the first way to plan in which a request of so many tokens fits; none: there is none. What the model
    refuses is none either."""
    for name, planned in ways:
        with contextlib.suppress(JaxinferError):
            if planned().holds(tokens):
                return [name]
    return []


def best_service(plan: MeshPlan, workload: Workload, batch: int, limits: Limits) -> Service | None:
    """Return the service with as many requests, of at most `batch`, as keep within the limits. If the workload has a
    rate, use the fewest requests that answer all that come, or those that answer most. None: not even one keeps within
    the limits."""
    if not limits.allow(service(plan, workload, 1)):
        return None
    most = _last(batch, lambda count: limits.allow(service(plan, workload, count)))
    if workload.rate is None:
        return service(plan, workload, most)
    # More requests may answer fewer: prompts do not fill the steps that they begin, nor requests all shards.
    found = [service(plan, workload, count) for count in range(1, most + 1)]
    enough = next((each for each in found if keeps_up(each, workload)), None)
    if enough is None:
        return max(found, key=lambda each: each.tokens_per_second)
    return enough._replace(tokens_per_second=workload.rate * workload.tokens_out)


def keeps_up(found: Service, workload: Workload) -> bool:
    """Return whether as many requests are answered as come."""
    return workload.rate is None or found.tokens_per_second >= workload.rate * workload.tokens_out


def _last(high: int, holds: Callable[[int], bool]) -> int:
    """The last number, from 1, for which it holds, as it does for all below it."""
    return 1 + bisect_left(range(2, high + 1), True, key=lambda number: not holds(number))
