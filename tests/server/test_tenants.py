"""Whose request it is: what the engine is told for fair sharing, and which requests share a prefix cache."""

from dataclasses import replace
from typing import Any

import pytest

from jaxinfer.engine.types import GenerateRequest
from jaxinfer.rpc import wire
from jaxinfer.serving.config import ServerConfig
from tests.server.conftest import Served
from tests.server.conversation import CHAT

KEYS = ("first-secret", "second-secret")


@pytest.fixture
def two_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerConfig, "api_keys", property(lambda options: KEYS))


async def sent(served: Served, key: str | None, path: str = "/v1/completions", **body: Any) -> GenerateRequest:
    """The engine's request."""
    body = {"prompt": "a", **body} if path != "/v1/chat/completions" else {"messages": CHAT, **body}
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    answer = await served.post(path, body, headers=headers)
    assert answer.status == 200, answer.body
    return served.engine.submitted[-1]


async def test_without_keys_and_users_all_requests_are_one_tenants(serve) -> None:
    served: Served = await serve()
    assert (await sent(served, None)).tenant == (await sent(served, "whatever")).tenant == ("", "")


@pytest.mark.usefixtures("two_keys")
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_keys_and_users_are_told_apart_and_not_shown(serve, path: str) -> None:
    served: Served = await serve()
    asked = [(KEYS[0], None), (KEYS[1], None), (KEYS[0], "ann"), (KEYS[1], "ann"), (KEYS[0], "bob")]
    tenants = [(await sent(served, key, path, user=user)).tenant for key, user in asked]
    again = [(await sent(served, key, path, user=user)).tenant for key, user in asked]
    assert tenants == again
    keys, users = zip(*tenants, strict=True)
    assert keys[0] == keys[2] == keys[4] != keys[1] == keys[3]
    assert len(set(users[2:])) == 3
    assert users[0] == users[1] == ""
    assert not any(word in repr(tenants) for word in (*KEYS, "ann", "bob"))


@pytest.mark.usefixtures("two_keys")
async def test_the_key_that_was_accepted_counts(serve) -> None:
    """A second header with a made-up key makes nobody another tenant."""
    served: Served = await serve()
    wanted = (await sent(served, KEYS[0])).tenant
    for headers in (
        {"X-Api-Key": KEYS[0], "Authorization": "Bearer made-up"},
        {"X-Api-Key": "made-up", "Authorization": f"Bearer {KEYS[0]}"},
    ):
        assert (await served.post("/v1/completions", {"prompt": "a"}, headers=headers)).status == 200
        assert served.engine.submitted[-1].tenant == wanted


async def test_a_user_of_another_form_is_none(serve) -> None:
    served: Served = await serve()
    assert (await sent(served, None, user={"name": "ann"})).tenant == ("", "")
    assert (await sent(served, None, user="x" * 100_000)).tenant[1] != ""


def test_the_engine_process_is_told() -> None:
    request = GenerateRequest("r", [1, 2], tenant=("a", "b"))
    crossed = wire.unpack_request(wire.pack_request(request))
    assert replace(crossed, prompt_token_ids=list(crossed.prompt_token_ids), prediction=()) == request


async def test_one_key_shares_the_cache_and_takes_salts_as_they_are(serve) -> None:
    served: Served = await serve(api_key=KEYS[0])
    assert (await sent(served, KEYS[0])).cache_salt == ""
    assert (await sent(served, KEYS[0], cache_salt="mine")).cache_salt == "mine"


@pytest.mark.usefixtures("two_keys")
async def test_with_several_keys_each_has_a_cache_of_its_own(serve) -> None:
    served: Served = await serve()
    plain = [(await sent(served, key)).cache_salt for key in (*KEYS, *KEYS)]
    salted = [(await sent(served, key, cache_salt="mine")).cache_salt for key in KEYS]
    other = [(await sent(served, key, cache_salt=plain[0])).cache_salt for key in KEYS]
    assert plain[:2] == plain[2:]
    assert len({*plain[:2], *salted, *other}) == 6, "a salt reaches the cache of another key"
    assert not any(word in "".join([*plain, *salted, *other]) for word in (*KEYS, "mine"))


@pytest.mark.usefixtures("two_keys")
async def test_the_cache_is_shared_across_keys_where_that_is_asked_for(serve) -> None:
    served: Served = await serve(share_cache_across_keys=True)
    assert [(await sent(served, key)).cache_salt for key in KEYS] == ["", ""]
    assert [(await sent(served, key, cache_salt="mine")).cache_salt for key in KEYS] == ["mine", "mine"]
