"""Without a key the server answers only names of this machine: a web page may have any other name."""

import pytest

from jaxinfer.errors import ParameterError
from jaxinfer.server.host_check import host_name
from jaxinfer.serving.config import ServerConfig
from tests.server.conftest import Served
from tests.server.openai_error import check
from tests.server.raw_http import is_error, send

OWN = [
    "localhost",
    "localhost:8000",
    "LOCALHOST",
    "localhost.",
    "127.0.0.1:8000",
    "127.8.9.1",
    "[::1]:8000",
    "a.localhost",
]
FOREIGN = [
    "evil.example",
    "localhost.evil.example:8000",
    "192.168.0.7",
    "0.0.0.0",
    "[2001:db8::1]:80",
    "127.0.0.1.nip.io",
]


@pytest.mark.parametrize("host", OWN)
async def test_names_of_this_machine_are_answered(serve, host: str) -> None:
    served: Served = await serve()
    assert (await served.post("/v1/completions", {"prompt": "a"}, headers={"Host": host})).status == 200


@pytest.mark.parametrize("host", FOREIGN)
async def test_other_names_are_not(serve, host: str) -> None:
    served: Served = await serve()
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/models", None), ("/metrics", None)):
        ask = (
            served.get(path, headers={"Host": host})
            if body is None
            else served.post(path, body, headers={"Host": host})
        )
        answer = await ask
        check(answer, 403, None, "--allowed-hosts")
        assert answer.body["error"]["code"] == "host_not_allowed"
    assert not served.engine.submitted


@pytest.mark.parametrize(
    "options", [{"allowed_hosts": ("other", "Evil.Example:80")}, {"allowed_hosts": ("*",)}, {"api_key": "k"}], ids=str
)
async def test_named_hosts_and_any_with_a_key(serve, options) -> None:
    served: Served = await serve(**options)
    headers = {"Host": "evil.example:80", "Authorization": "Bearer k"}
    assert (await served.post("/v1/completions", {"prompt": "a"}, headers=headers)).status == 200


async def test_an_address_with_colons_may_be_allowed(serve) -> None:
    served: Served = await serve(allowed_hosts=("fd00::5",))
    assert (await served.get("/v1/models", headers={"Host": "[fd00::5]:8000"})).status == 200
    assert (await served.get("/v1/models", headers={"Host": "fd00"})).status == 403


def test_a_host_is_no_url() -> None:
    with pytest.raises(ParameterError, match="allowed_hosts: http://a must be a name or an address, not a URL"):
        ServerConfig(allowed_hosts=("http://a",))


async def test_bytes_that_are_no_text(serve) -> None:
    served: Served = await serve()
    answer = await send(served, b"GET /healthz HTTP/1.1\r\nHost: loc\xf7\xce\r\n\r\n")
    assert is_error(answer, 403), answer


def test_the_name_in_a_host() -> None:
    given = {"A.b:80": "a.b", "[::1]:8": "::1", "[::1]": "::1", "FD00::5": "fd00::5", "a.": "a", " x ": "x", "": ""}
    assert {host: host_name(host) for host in given} == given
