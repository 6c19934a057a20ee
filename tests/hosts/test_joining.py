"""Who may not join is refused with a text that shows both sides; the others can still join."""

import math
import threading
import time
from typing import Any

import pytest

from jaxinfer.errors import ParameterError
from jaxinfer.hosts import messages
from jaxinfer.hosts.errors import HostLostError, HostsError
from jaxinfer.hosts.following import HostFollower
from jaxinfer.hosts.leading import HostLeader
from jaxinfer.hosts.timing import HostTiming
from tests.hosts.cluster import FACTS, PATIENT, Losses, RawFollower

pytestmark = pytest.mark.timeout(60)


def leader(num_hosts: int = 2, **options: Any) -> HostLeader:
    return HostLeader(num_hosts, FACTS, **{"lost": Losses(), "timing": PATIENT, **options})


def follower(num_hosts: int = 2, host_id: int = 1, **options: Any) -> HostFollower:
    given = {"facts": FACTS, "lost": Losses(), "timing": PATIENT, **options}
    return HostFollower(num_hosts, host_id, **given)


def test_the_key_lets_in() -> None:
    with leader(key="k") as first, follower(key="k") as second:
        second.join(first.listen("127.0.0.1:0"))
        first.wait_joined()


@pytest.mark.parametrize("key", [None, "wrong", "kk"])
def test_a_wrong_key_is_refused(key: str | None) -> None:
    with leader(key="k") as first, follower(key=key) as second:
        with pytest.raises(
            HostsError, match=r"host 1 cannot join host 0 at 127.0.0.1:\d+: the key is missing or wrong"
        ):
            second.join(first.listen("127.0.0.1:0"))
        assert first.states() == []


def test_without_a_key_only_loopback_is_allowed() -> None:
    with leader() as first, follower() as second:
        with pytest.raises(ParameterError, match="hosts_key: without a key only loopback addresses are allowed"):
            first.listen("0.0.0.0:0")
        with pytest.raises(ParameterError, match=r"hosts_key: .* not 10.0.0.1:70"):
            second.join("10.0.0.1:70")


def test_other_interfaces_are_reached_with_a_key() -> None:
    with leader(key="k") as first, follower(key="k") as second:
        port = first.listen("a-name-nobody-knows:0").rpartition(":")[2]
        second.join(f"127.0.0.1:{port}")


def test_a_port_that_is_taken_is_named() -> None:
    with leader() as first, leader() as second:
        address = first.listen("127.0.0.1:0")
        with pytest.raises(ParameterError, match=f"coordinator: cannot listen on {address}"):
            second.listen(address)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another fact": ({"facts": {**FACTS, "mesh": "tensor=4"}}, "mesh is 'tensor=2' on host 0 and 'tensor=4' on host 1"),
    "a missing fact": ({"facts": {"jaxinfer": "1"}}, "mesh is 'tensor=2' on host 0 and absent on host 1"),
    "another version": ({"facts": {**FACTS, "jaxinfer": "2"}}, "jaxinfer is '1' on host 0 and '2' on host 1"),
    "an id too large": ({"host_id": 2}, "host_id 2 is out of range: 1 to 1 may join host 0"),
    "the leader's id": ({"host_id": 0}, "host_id 0 is out of range: 1 to 1 may join host 0"),
    "an id below 0": ({"host_id": -1}, "host_id -1 is out of range"),
    "another number of hosts": ({"num_hosts": 3}, "num_hosts is 3 on host 1 and 2 on host 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_differs_is_shown_on_both_hosts(case: str) -> None:
    changes, text = REFUSED[case]
    with leader(timing=HostTiming(join=0.2)) as first:
        address = first.listen("127.0.0.1:0")
        with follower(**changes) as second, pytest.raises(HostsError, match=f"has refused host .*: {text}"):
            second.join(address)
        with pytest.raises(HostLostError, match=f"not joined within 0.2 s: 1; refused: {text}"):
            first.wait_joined()


def test_host_0_says_whom_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    with leader(3, timing=HostTiming(join=0.5, notice=0.1)) as first, follower(3) as second:
        address = first.listen("127.0.0.1:0")
        second.join(address)
        with pytest.raises(HostLostError, match=r"not joined within 0\.5 s: 2"):
            first.wait_joined()
    lines = [record.message for record in caplog.records if "waiting" in record.message]
    assert set(lines) == {"waiting for hosts to join (0.5 s at most): 2"}
    assert 2 <= len(lines) <= 5


def test_who_was_refused_may_come_again_as_it_should() -> None:
    with leader() as first:
        address = first.listen("127.0.0.1:0")
        with follower(facts={}) as second, pytest.raises(HostsError):
            second.join(address)
        with follower() as third:
            third.join(address)
            first.wait_joined()


def test_who_has_joined_is_told_that_others_have_not() -> None:
    losses = Losses(), Losses()
    with leader(3, lost=losses[0], timing=HostTiming(join=0.3)) as first, follower(3, lost=losses[1]) as second:
        second.join(first.listen("127.0.0.1:0"))
        with pytest.raises(HostLostError, match=r"hosts that have not joined within 0.3 s: 2"):
            first.wait_joined()
        with pytest.raises(HostLostError, match=r"hosts that have not joined within 0.3 s: 2"):
            second.agree("loaded", FACTS)
        assert losses[0].wait() == losses[1].wait()


@pytest.mark.parametrize(
    "timing", [HostTiming(silence=0.5), HostTiming(silence=math.inf, join=0.5)], ids=["soon", "never"]
)
def test_a_second_host_of_the_same_id_is_refused(timing: HostTiming) -> None:
    quick = leader(3, timing=timing)  # it waits for a while whether the first one is lost
    with quick as first, RawFollower(address := first.listen("127.0.0.1:0"), 1, 3) as known:
        with follower(3) as second, pytest.raises(HostsError) as raised:
            second.join(address)
        assert f"host_id 1 has joined already, from {first.states()[0].peer}; this is another, from ipv4:" in str(
            raised.value
        )
        known.wait_for(messages.Accepted)


def test_a_host_that_comes_again_before_its_end_is_noticed_joins_the_next_leader() -> None:
    with leader(lost=Losses()) as first:
        address = first.listen("127.0.0.1:0")
        with RawFollower(address, 1, 2) as old, follower() as second:
            first.wait_joined()
            joining = threading.Thread(target=second.join, args=(address,), daemon=True)
            joining.start()
            time.sleep(0.3)
            old.call.cancel()
            time.sleep(0.3)
            first.close()
            with leader() as other:
                other.listen(address)
                other.wait_joined()
                joining.join(10.0)
                assert [state.host_id for state in other.states()] == [1]


def test_a_host_that_left_before_all_have_joined_may_come_again() -> None:
    with leader() as first:
        address = first.listen("127.0.0.1:0")
        with follower() as second:
            second.join(address)
        with follower() as third:
            third.join(address)
            first.wait_joined()
        assert len(first.states()) == 1


def test_the_leader_may_come_last() -> None:
    """Followers try again and again."""
    with leader() as first, follower() as second:
        address = first.listen("127.0.0.1:0")
        first.close()
        found: list[Any] = []

        def start() -> None:
            found.append(second.join(address))
            found.append(second.agree("loaded", FACTS, (7,)))

        starting = threading.Thread(target=start, daemon=True)
        starting.start()
        starting.join(1.0)
        assert starting.is_alive()
        with leader(decisions={"backend": "x"}, timing=HostTiming(ready=3.0)) as late:
            late.listen(address)
            late.wait_joined()
            late.agree("loaded", FACTS, (8,), {"pages": "few"})
            starting.join(7)
            assert found == [{"backend": "x"}, ({"pages": "few"}, (7,))]


def test_nobody_is_awaited_for_ever() -> None:
    unreached = r"host 1 cannot join host 0 at 127.0.0.1:9: .*refused"
    with follower(timing=HostTiming(join=0.3)) as second, pytest.raises(HostsError, match=unreached):
        second.join("127.0.0.1:9")
    with leader(4, timing=HostTiming(join=0.1)) as first:
        RawFollower(first.listen("127.0.0.1:0"), 2, 4)
        with pytest.raises(HostsError, match=r"within 0.1 s: 1, 3$"):
            first.wait_joined()


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\xa4Join\x01", messages.encode(messages.Leave("x"))])
def test_who_does_not_speak_the_protocol_is_refused(data: bytes) -> None:
    with leader() as first, RawFollower(first.listen("127.0.0.1:0"), 1, 2, join=False) as stranger:
        stranger.send_bytes(data)
        assert "the first message" in stranger.wait_for(messages.Refused).reason


def agree(first: HostLeader, second: HostFollower, facts: Any, counts: Any) -> list[Exception]:
    """What both raise when they agree."""
    errors: list[Exception] = []

    def try_to(do: Any) -> None:
        try:
            do()
        except Exception as error:
            errors.append(error)

    second.join(first.listen("127.0.0.1:0"))
    first.wait_joined()
    other = threading.Thread(target=try_to, args=[lambda: second.agree("loaded", facts, counts)], daemon=True)
    other.start()
    try_to(lambda: first.agree("loaded", FACTS, (1, 2)))
    other.join(7)
    return errors


@pytest.mark.parametrize(
    ("facts", "counts", "text"),
    [
        ({**FACTS, "mesh": "x"}, (1, 2), "hosts differ when they are loaded: mesh is 'tensor=2' on host 0 and 'x' on"),
        (FACTS, (1,), "hosts differ when they are loaded: hosts have 2 and 1 counts"),
    ],
)
def test_what_differs_once_loaded_ends_all_hosts(facts: Any, counts: Any, text: str) -> None:
    losses = Losses(), Losses()
    with leader(lost=losses[0]) as first, follower(lost=losses[1]) as second:
        errors = agree(first, second, facts, counts)
        assert [type(error) for error in errors] == [HostLostError, HostLostError]
        assert all(text in str(error) for error in errors)
        assert all(text in each.wait() for each in losses)


def test_a_host_that_never_loads_ends_all_hosts() -> None:
    losses = Losses(), Losses()
    with leader(lost=losses[0], timing=HostTiming(ready=0.3)) as first, follower(lost=losses[1]) as second:
        second.join(first.listen("127.0.0.1:0"))
        first.wait_joined()
        with pytest.raises(HostLostError, match=r"hosts that are not loaded within 0.3 s: 1"):
            first.agree("loaded", FACTS)
        assert losses[0].wait() == losses[1].wait()
