"""Whose a call is: as with HTTP, by the key that it brings."""

import pytest

from jaxinfer.rpc import jaxinfer_pb2 as pb
from jaxinfer.serving.config import ServerConfig
from jaxinfer.serving.tenant import key_salt, tenant_of
from tests.rpc.public import Public, collect

KEYS = ("first-secret", "second-secret")


async def test_calls_have_the_tenant_and_the_salt_of_their_key(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerConfig, "api_keys", property(lambda options: KEYS))
    served: Public = await serve()
    for key, salt in ((KEYS[0], None), (KEYS[1], None), (KEYS[1], "mine")):
        message = pb.GenerateRequest(text="hello", cache_salt=salt)
        await collect(served.stub.Generate(message, metadata=(("authorization", f"Bearer {key}"),)))
        request = served.engine.submitted[-1]
        assert request.tenant == tenant_of(key, None)
        assert request.cache_salt == key_salt(key, salt)
        assert key not in repr(request)
