"""The key that hosts share, and the addresses that need none."""

import hmac
import re
from collections.abc import Mapping
from ipaddress import ip_address

from jaxinfer.errors import ParameterError

KEY_VARIABLE = "JAXINFER_HOSTS_KEY"
WRONG_KEY = f"the key is missing or wrong; --hosts-key or ${KEY_VARIABLE} must be the same on all hosts"


def hosts_key(given: str | None, environment: Mapping[str, str]) -> str | None:
    """The key by the setting, or else by the environment; None where there is none. Raises ParameterError."""
    key = given or environment.get(KEY_VARIABLE) or None
    if key is not None and not re.fullmatch(r"[\x21-\x7e]+", key):
        raise ParameterError("hosts_key", "must have visible ASCII characters only, and no space or line's end")
    return key


def check_access(address: str, key: str | None) -> None:
    """Raises ParameterError where hosts would reach each other at HOST:PORT without a key."""
    if key is None and not is_loopback(address):
        without = "without a key only loopback addresses are allowed"
        raise ParameterError("hosts_key", f"{without}, not {address}; set ${KEY_VARIABLE} to one secret on all hosts")


def is_loopback(address: str) -> bool:
    """True where only this machine can reach HOST:PORT. No name is looked up."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def key_accepted(given: str, key: str | None) -> bool:
    """True where a follower brings the key, or where there is none. The time does not tell how much of it is right."""
    return key is None or hmac.compare_digest(given.encode(), key.encode())
