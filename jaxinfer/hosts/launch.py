"""Place of this host among several, from settings, or from the environment variables of the launcher."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from jaxinfer.errors import ParameterError, quoted
from jaxinfer.hosts.node_list import expand_nodes

AUTO = "auto"
"""A coordinator that is found in the environment."""
MOST_HOSTS = 4096
_DEFAULT_PORT = 8476
_LAST_PORT = 65_534
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%\w]+\]|[^\s:\[\]/]+):(\d{1,5})", re.ASCII)


class HostPlace(NamedTuple):
    """One host among several. coordinator: HOST:PORT of host 0, for `jax.distributed`; its next port is for `stream`.
    host_id: 0 to num_hosts - 1; host 0 schedules."""

    coordinator: str
    num_hosts: int
    host_id: int

    @property
    def leads(self) -> bool:
        """True for host 0."""
        return self.host_id == 0

    @property
    def stream(self) -> str:
        """HOST:PORT at which host 0 awaits the others."""
        host, _, port = self.coordinator.rpartition(":")
        return f"{host}:{int(port) + 1}"


class _Found(NamedTuple):
    """A launcher's values. host: of host 0, without a port. None: the launcher does not set it."""

    launcher: str
    host: str | None
    num_hosts: int | None
    host_id: int
    port: int = _DEFAULT_PORT


Environment = Mapping[str, str]


def find_place(
    coordinator: str | None, num_hosts: int | None, host_id: int | None, environment: Environment
) -> HostPlace | None:
    """This host's place; None for an engine on one host.

    The environment is read only where `coordinator` is given: it is AUTO, or one of the other two is missing. What is
    given wins. Raises ParameterError.
    """
    _check_numbers(num_hosts, host_id)
    if coordinator is None:
        return _one_host(num_hosts, host_id)
    if coordinator != AUTO:
        _check_address(coordinator)
    if coordinator == AUTO or num_hosts is None or host_id is None:
        found = _find_launcher(environment, _wanted(coordinator, num_hosts, host_id))
        coordinator = _address(found, environment) if coordinator == AUTO else coordinator
        num_hosts = _num_hosts(found) if num_hosts is None else num_hosts
        host_id = found.host_id if host_id is None else host_id
    if not 0 <= host_id < num_hosts:
        allowed = f"0 to {num_hosts - 1} is allowed of {num_hosts} hosts"
        raise ParameterError("host_id", f"{host_id} is out of range: {allowed}")
    return HostPlace(coordinator, num_hosts, host_id) if num_hosts > 1 else None


def _check_numbers(num_hosts: int | None, host_id: int | None) -> None:
    if num_hosts is not None and not 1 <= num_hosts <= MOST_HOSTS:
        raise ParameterError("num_hosts", f"{num_hosts} is out of range; 1 to {MOST_HOSTS} is allowed")
    if host_id is not None and host_id < 0:
        raise ParameterError("host_id", f"{host_id} is out of range; 0 to the number of hosts - 1 is allowed")


def _one_host(num_hosts: int | None, host_id: int | None) -> None:
    for name, value, alone in (("num_hosts", num_hosts, 1), ("host_id", host_id, 0)):
        if value not in (None, alone):
            needed = f"{name} is {value}, which needs a coordinator: HOST:PORT of host 0, or {AUTO}"
            raise ParameterError("coordinator", needed)


def _check_address(coordinator: str) -> None:
    found = _ADDRESS.fullmatch(coordinator)
    if found is None or not 1 <= int(found[2]) <= _LAST_PORT:
        allowed = f"HOST:PORT of host 0 with a port from 1 to {_LAST_PORT} (the next one is used as well), or {AUTO}"
        raise ParameterError("coordinator", f"{quoted(coordinator)} is not allowed; give {allowed}")


def _wanted(coordinator: str, num_hosts: int | None, host_id: int | None) -> list[str]:
    """The settings that the environment must complete."""
    given = {"coordinator": coordinator != AUTO, "num_hosts": num_hosts is not None, "host_id": host_id is not None}
    return [name for name, is_given in given.items() if not is_given]


def _address(found: _Found, environment: Environment) -> str:
    if found.host is None:
        raise ParameterError("coordinator", f"{found.launcher} does not tell where host 0 is; give HOST:PORT")
    port = _number(environment, "JAX_COORDINATOR_PORT") if "JAX_COORDINATOR_PORT" in environment else found.port
    host = f"[{found.host}]" if ":" in found.host else found.host
    _check_address(f"{host}:{port}")
    return f"{host}:{port}"


def _num_hosts(found: _Found) -> int:
    if found.num_hosts is None:
        raise ParameterError("num_hosts", f"{found.launcher} does not tell the number of hosts; give it")
    _check_numbers(found.num_hosts, None)
    return found.num_hosts


# Launchers


def _find_launcher(environment: Environment, wanted: Sequence[str]) -> _Found:
    """Return the values of the only launcher, or of several that agree on the settings that are wanted."""
    found = [each for find in _LAUNCHERS if (each := find(environment)) is not None]
    # A job's index counts within the job, and a JobSet has several: it counts where nothing else does.
    found = found or [each for each in (_kubernetes_job(environment),) if each is not None]
    if not found:
        raise ParameterError(wanted[0], _nothing_found(environment))
    first = found[0]
    for other in found[1:]:
        # NOTE: the name of host 0 may be spelt in several ways.
        for name in sorted({"num_hosts", "host_id"}.intersection(wanted)):
            own, others = getattr(first, name), getattr(other, name)
            if own != others:
                contradiction = f"{own} by {first.launcher}, {others} by {other.launcher}"
                raise ParameterError(name, f"launchers contradict each other: {contradiction}; give it")
    return first


def _nothing_found(environment: Environment) -> str:
    known = "LeaderWorkerSet, TPU_WORKER_ID with TPU_WORKER_HOSTNAMES, Slurm (srun), or an indexed job of Kubernetes"
    needed = f"the environment has no variables of {known}; give coordinator, num_hosts and host_id"
    if any(name.startswith("RAY_") for name in environment):
        needed += ". Ray numbers no hosts by itself: give each of its tasks its own host_id"
    return needed


def _leader_worker_set(environment: Environment) -> _Found | None:
    names = "LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX"
    if not any(name in environment for name in names):
        return None
    leader = _text(environment, names[0])
    return _Found("LeaderWorkerSet", leader, *(_number(environment, name) for name in names[1:]))


def _tpu(environment: Environment) -> _Found | None:
    """TPU VMs and GKE. Slices that form one multislice (MEGASCALE_…) are numbered one after another, as JAX does."""
    listed = "TPU_PROCESS_ADDRESSES" if "TPU_PROCESS_ADDRESSES" in environment else "TPU_WORKER_HOSTNAMES"
    if "TPU_WORKER_ID" not in environment and listed not in environment:
        return None
    hosts = [_without_port(host.strip()) for host in _text(environment, listed).split(",")]
    worker = _number(environment, "TPU_WORKER_ID")
    if not worker < len(hosts):
        raise ParameterError("host_id", f"TPU_WORKER_ID is {worker}, and {listed} has {len(hosts)} hosts")
    if "MEGASCALE_NUM_SLICES" not in environment:
        return _Found("TPU_WORKER_ID", hosts[0], len(hosts), worker, 8482)
    slices, own = (_number(environment, f"MEGASCALE_{name}") for name in ("NUM_SLICES", "SLICE_ID"))
    first = _without_port(_text(environment, "MEGASCALE_COORDINATOR_ADDRESS"))
    return _Found("TPU_WORKER_ID", first, slices * len(hosts), own * len(hosts) + worker, 8482)


def _slurm(environment: Environment) -> _Found | None:
    if "SLURM_JOB_ID" not in environment or not any(f"SLURM_{name}" in environment for name in ("PROCID", "NODEID")):
        return None
    listed = "SLURM_STEP_NODELIST" if "SLURM_STEP_NODELIST" in environment else "SLURM_JOB_NODELIST"
    text = _text(environment, listed)
    try:
        nodes = expand_nodes(text)
    except ValueError as error:
        raise ParameterError("coordinator", f"{listed} is {quoted(text)}: {error}") from None
    counted = "SLURM_NTASKS" if "SLURM_NTASKS" in environment else "SLURM_NNODES"
    if (tasks := _number(environment, counted)) != len(nodes):
        one = "one task a node is allowed (srun --ntasks-per-node=1)"
        raise ParameterError("num_hosts", f"{counted} is {tasks}, and {listed} has {len(nodes)} nodes; {one}")
    # NOTE: nodes are numbered as they are listed; tasks may be distributed otherwise.
    host_id = _number(environment, "SLURM_NODEID" if "SLURM_NODEID" in environment else "SLURM_PROCID")
    # Two ports of its own for each of 2,047 jobs: jobs may share a node.
    port = 61_440 + 2 * (_number(environment, "SLURM_JOB_ID") % 2047)
    return _Found("Slurm", nodes[0], len(nodes), host_id, port)


def _kubernetes_job(environment: Environment) -> _Found | None:
    if "JOB_COMPLETION_INDEX" not in environment:
        return None
    return _Found("an indexed job of Kubernetes", None, None, _number(environment, "JOB_COMPLETION_INDEX"))


_LAUNCHERS: tuple[Callable[[Environment], _Found | None], ...] = (_leader_worker_set, _tpu, _slurm)

_SETTINGS = {
    "LWS_LEADER_ADDRESS": "coordinator",
    "LWS_GROUP_SIZE": "num_hosts",
    "SLURM_NTASKS": "num_hosts",
    "SLURM_NNODES": "num_hosts",
    "MEGASCALE_NUM_SLICES": "num_hosts",
    "LWS_WORKER_INDEX": "host_id",
    "SLURM_NODEID": "host_id",
    "SLURM_PROCID": "host_id",
    "TPU_WORKER_ID": "host_id",
    "MEGASCALE_SLICE_ID": "host_id",
    "JOB_COMPLETION_INDEX": "host_id",
}
"""Setting that each variable stands for; other variables name the coordinator."""


def _text(environment: Environment, name: str) -> str:
    if not environment.get(name, "").strip():
        raise ParameterError(_SETTINGS.get(name, "coordinator"), f"the variable {name} is missing or empty")
    return environment[name].strip()


def _number(environment: Environment, name: str) -> int:
    text = _text(environment, name)
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        setting = _SETTINGS.get(name, "coordinator")
        raise ParameterError(setting, f"the variable {name} must be a number, not {quoted(text)}")
    return int(text)


def _without_port(host: str) -> str:
    return host.split(":")[0] if host.count(":") == 1 else host
