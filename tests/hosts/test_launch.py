"""Each launcher's variables give a place; what is wrong in them is refused by the setting's name."""

import random
from typing import Any

import pytest

from jaxinfer.errors import ParameterError
from jaxinfer.hosts.launch import AUTO, HostPlace, find_place

LWS = {"LWS_LEADER_ADDRESS": "llm-0.llm.default", "LWS_GROUP_SIZE": "4", "LWS_WORKER_INDEX": "2"}
SLURM = {
    "SLURM_JOB_ID": "1000",
    "SLURM_STEP_NODELIST": "gpu[07-09],login",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "1",  # tasks are distributed otherwise
    "SLURM_NODEID": "3",
}
TPU = {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "tpu-0.pods,tpu-1.pods"}
JOB = {"JOB_COMPLETION_INDEX": "1"}
LAUNCHERS = {
    "LeaderWorkerSet": (LWS, HostPlace("llm-0.llm.default:8476", 4, 2)),
    "Slurm": (SLURM, HostPlace("gpu07:63440", 4, 3)),
    "Slurm, no step's list": (
        {"SLURM_JOB_ID": "3", "SLURM_JOB_NODELIST": "a,b", "SLURM_NNODES": "2", "SLURM_PROCID": "1"},
        HostPlace("a:61446", 2, 1),
    ),
    "TPU": (TPU, HostPlace("tpu-0.pods:8482", 2, 1)),
    "TPU addresses": (
        {"TPU_WORKER_ID": "0", "TPU_PROCESS_ADDRESSES": "10.0.0.1:8471,10.0.0.2:8471"},
        HostPlace("10.0.0.1:8482", 2, 0),
    ),
    "TPU, IPv6": ({"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "fd00::1,fd00::2"}, HostPlace("[fd00::1]:8482", 2, 1)),
    "slices": (
        {
            **TPU,
            "MEGASCALE_NUM_SLICES": "3",
            "MEGASCALE_SLICE_ID": "2",
            "MEGASCALE_COORDINATOR_ADDRESS": "first-0.pods:8080",
        },
        HostPlace("first-0.pods:8482", 6, 5),
    ),
    "a port": ({**LWS, "JAX_COORDINATOR_PORT": "5000"}, HostPlace("llm-0.llm.default:5000", 4, 2)),
    "two that agree": (
        {**LWS, "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1", **TPU},
        HostPlace("llm-0.llm.default:8476", 2, 1),
    ),
    "a job's index beside another": ({**LWS, "JOB_COMPLETION_INDEX": "0"}, HostPlace("llm-0.llm.default:8476", 4, 2)),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_tells_the_place(launcher: str) -> None:
    environment, place = LAUNCHERS[launcher]
    assert find_place(AUTO, None, None, environment) == place


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_nothing_is_detected_unasked(launcher: str) -> None:
    """Nor where the engine is asked to be alone."""
    environment = LAUNCHERS[launcher][0]
    assert find_place(None, None, None, environment) is None
    assert find_place(None, 1, 0, environment) is None
    assert find_place("a:1", 1, 0, environment) is None


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_settings_win_and_are_completed(launcher: str) -> None:
    environment, place = LAUNCHERS[launcher]
    assert find_place("h:70", 9, 8, environment) == HostPlace("h:70", 9, 8)
    assert find_place("h:70", 9, None, environment) == HostPlace("h:70", 9, place.host_id)
    assert find_place("h:70", None, 0, environment) == HostPlace("h:70", place.num_hosts, 0)
    assert find_place(AUTO, 7, None, environment) == HostPlace(place.coordinator, 7, place.host_id)


def test_an_indexed_job_tells_the_id_alone() -> None:
    assert find_place("first:70", 3, None, JOB) == HostPlace("first:70", 3, 1)
    with pytest.raises(ParameterError, match="num_hosts: an indexed job of Kubernetes does not tell the number"):
        find_place("first:70", None, None, JOB)
    with pytest.raises(ParameterError, match="coordinator: an indexed job of Kubernetes does not tell where host 0"):
        find_place(AUTO, 3, None, JOB)


def test_one_host_of_a_launcher_is_alone() -> None:
    assert find_place(AUTO, None, None, {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}) is None


WRONG: dict[str, tuple[tuple[Any, Any, Any], dict[str, str], str]] = {
    "no coordinator": ((None, 2, 0), LWS, "coordinator: num_hosts is 2, which needs a coordinator"),
    "an id alone": ((None, None, 1), LWS, "coordinator: host_id is 1, which needs a coordinator"),
    "id too large": (("h:70", 2, 2), {}, "host_id: 2 is out of range: 0 to 1 is allowed of 2 hosts"),
    "id below 0": (("h:70", 2, -1), {}, "host_id: -1 is out of range"),
    "no hosts": (("h:70", 0, 0), {}, "num_hosts: 0 is out of range; 1 to 4096"),
    "an address without a port": (("h", 2, 0), {}, "coordinator: 'h' is not allowed; give HOST:PORT"),
    "port 0": (("h:0", 2, 0), {}, "port from 1 to 65534"),
    "the last port": (("h:65535", 2, 0), {}, "port from 1 to 65534"),
    "two colons": (("fd00::1:70", 2, 0), {}, "coordinator: 'fd00::1:70' is not allowed"),
    "no launcher": ((AUTO, None, None), {}, "coordinator: the environment has no variables of LeaderWorkerSet"),
    "no launcher for an id": (("h:70", 2, None), {}, "host_id: the environment has no variables"),
    "no launcher for a number": (("h:70", None, None), {}, "num_hosts: the environment has no variables"),
    "Ray": ((AUTO, None, None), {"RAY_ADDRESS": "h:6379"}, "Ray numbers no hosts by itself"),
    "a variable is missing": (
        (AUTO, None, None),
        {"LWS_LEADER_ADDRESS": "h"},
        "num_hosts: the variable LWS_GROUP_SIZE is missing or empty",
    ),
    "a variable is empty": (
        (AUTO, None, None),
        {**LWS, "LWS_LEADER_ADDRESS": " "},
        "coordinator: .* LWS_LEADER_ADDRESS",
    ),
    "no number": ((AUTO, None, None), {**LWS, "LWS_WORKER_INDEX": "two"}, "host_id: .* must be a number, not 'two'"),
    "no port": ((AUTO, None, None), {**LWS, "JAX_COORDINATOR_PORT": "http"}, "coordinator: .* JAX_COORDINATOR_PORT"),
    "a port too large": ((AUTO, None, None), {**LWS, "JAX_COORDINATOR_PORT": "70000"}, "coordinator: .*:70000"),
    "an id of a launcher": ((AUTO, None, None), {**LWS, "LWS_WORKER_INDEX": "4"}, "host_id: 4 is out of range: 0 to 3"),
    "an id beyond the list": (
        (AUTO, None, None),
        {**TPU, "TPU_WORKER_ID": "2"},
        "host_id: TPU_WORKER_ID is 2, .* 2 hosts",
    ),
    "no list": ((AUTO, None, None), {"TPU_WORKER_ID": "2"}, "coordinator: .* TPU_WORKER_HOSTNAMES is missing"),
    "a slice without its id": (
        (AUTO, None, None),
        {**TPU, "MEGASCALE_NUM_SLICES": "2"},
        "host_id: .* MEGASCALE_SLICE_ID is missing",
    ),
    "several tasks a node": (
        (AUTO, None, None),
        {**SLURM, "SLURM_NTASKS": "8"},
        "num_hosts: SLURM_NTASKS is 8, and SLURM_STEP_NODELIST has 4 nodes; one task a node",
    ),
    "a list of nodes": (
        (AUTO, None, None),
        {**SLURM, "SLURM_STEP_NODELIST": "gpu[7"},
        r"coordinator: SLURM_STEP_NODELIST is 'gpu\[7'",
    ),
    "launchers of two sizes": (
        (AUTO, None, None),
        {**LWS, **TPU, "LWS_WORKER_INDEX": "1"},
        "num_hosts: launchers contradict",
    ),
    "launchers of two ids": (
        (AUTO, None, None),
        {**LWS, **TPU, "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "0"},
        "host_id: launchers contradict each other: 0 by LeaderWorkerSet, 1 by TPU_WORKER_ID",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case: str) -> None:
    settings, environment, message = WRONG[case]
    with pytest.raises(ParameterError, match=message):
        find_place(*settings, environment)


def test_a_contradiction_of_what_is_given_is_none() -> None:
    environment = {**LWS, **TPU, "LWS_WORKER_INDEX": "0"}
    assert find_place(AUTO, 4, 3, environment) == HostPlace("llm-0.llm.default:8476", 4, 3)


def test_any_values_give_a_place_or_an_error() -> None:
    """No other exception."""
    rng = random.Random(0)
    values = ["", " ", "0", "1", "-1", "x", "9" * 30, "a,b", "a[1-2]", "a[2-1]", "[::1]:5", "a[", "²", "\n"]
    names = sorted({*LWS, *SLURM, *TPU, *JOB, "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "JAX_COORDINATOR_PORT"})
    found: list[HostPlace | str | None] = []
    for _ in range(3000):
        environment = {name: rng.choice(values) for name in rng.sample(names, rng.randrange(len(names)))}
        address, size, number = rng.choice([AUTO, "h:70"]), rng.choice([None, 3]), rng.choice([None, 0])
        found.append(_place_or_param(address, size, number, environment))
    assert {each for each in found if isinstance(each, str)} == {"coordinator", "num_hosts", "host_id"}
    places = [each for each in found if isinstance(each, HostPlace)]
    assert len(places) > 100
    assert all(0 <= each.host_id < each.num_hosts for each in places)


@pytest.mark.parametrize(("coordinator", "stream"), [("h:70", "h:71"), ("[::1]:65534", "[::1]:65535")])
def test_the_stream_has_the_next_port(coordinator: str, stream: str) -> None:
    assert HostPlace(coordinator, 2, 1).stream == stream
    assert [HostPlace(coordinator, 2, i).leads for i in range(2)] == [True, False]


def _place_or_param(
    coordinator: str, num_hosts: int | None, host_id: int | None, environment: dict[str, str]
) -> HostPlace | str | None:
    try:
        return find_place(coordinator, num_hosts, host_id, environment)
    except ParameterError as error:
        return error.param
