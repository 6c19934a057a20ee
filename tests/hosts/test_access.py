"""Other machines need a key."""

import pytest

from jaxinfer.errors import ParameterError
from jaxinfer.hosts.access import KEY_VARIABLE, check_access, hosts_key, key_accepted


@pytest.mark.parametrize("address", ["127.0.0.1:70", "127.8.0.1:70", "[::1]:70", "localhost:70"])
def test_loopback_needs_no_key(address: str) -> None:
    check_access(address, None)


@pytest.mark.parametrize("address", ["10.0.0.1:70", "0.0.0.0:70", "[::]:70", "localhost.evil:70", "node7:70", ":70"])
def test_other_addresses_do(address: str) -> None:
    check_access(address, "k")
    with pytest.raises(ParameterError, match=f"hosts_key: .*, not .*{KEY_VARIABLE}"):
        check_access(address, None)


def test_the_setting_wins_over_the_environment() -> None:
    assert hosts_key("a", {KEY_VARIABLE: "b"}) == "a"
    assert hosts_key(None, {KEY_VARIABLE: "b"}) == "b"
    assert hosts_key(None, {KEY_VARIABLE: ""}) is None


@pytest.mark.parametrize("key", ["a b", "é", "a\n"])
def test_a_key_that_metadata_cannot_carry_is_refused(key: str) -> None:
    with pytest.raises(ParameterError, match="hosts_key: must have visible ASCII"):
        hosts_key(key, {})


def test_keys_are_compared() -> None:
    assert key_accepted("k", "k")
    assert key_accepted("", None)
    assert not key_accepted("", "k")
    assert not key_accepted("kk", "k")
    assert not key_accepted("é", "k")
