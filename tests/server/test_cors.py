"""Pages of other origins: none by default, those that are named, and never with credentials for all."""

import pytest

from jaxinfer.errors import ParameterError
from jaxinfer.serving.config import ServerConfig
from tests.server.conftest import Served

PAGE = {"Origin": "https://page.example"}
ASKS = {**PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}


async def test_no_page_may_use_the_server_by_default(serve) -> None:
    served: Served = await serve()
    answer = await served.post("/v1/completions", {"prompt": "a"}, headers=PAGE)
    assert "Access-Control-Allow-Origin" not in answer.headers
    async with served.session.options(served.url + "/v1/completions", headers=ASKS) as response:
        assert response.status == 405
        assert "Access-Control-Allow-Origin" not in response.headers


async def test_a_page_of_an_allowed_origin_may(serve) -> None:
    served: Served = await serve(allowed_origins=("https://page.example",), api_key="secret")
    async with served.session.options(served.url + "/v1/completions", headers=ASKS) as response:
        assert response.status == 204  # a preflight request brings no key
        assert response.headers["Access-Control-Allow-Origin"] == "https://page.example"
        assert "POST" in response.headers["Access-Control-Allow-Methods"]
        assert response.headers["Access-Control-Allow-Headers"] == "content-type"
        assert response.headers["Vary"] == "Origin"
    for headers, status in ((PAGE, 401), ({**PAGE, "Authorization": "Bearer secret"}, 200)):
        answer = await served.post("/v1/completions", {"prompt": "a"}, headers=headers)
        assert answer.status == status
        assert answer.headers["Access-Control-Allow-Origin"] == "https://page.example"  # so that it can read errors


async def test_the_headers_that_a_page_asks_for_are_granted(serve) -> None:
    """OpenAI's package for Node names these in its preflight request."""
    served: Served = await serve(allowed_origins=("https://page.example",))
    asked = "authorization,content-type,x-stainless-arch,x-stainless-retry-count,x-stainless-runtime-version"
    headers = {**ASKS, "Access-Control-Request-Headers": asked}
    async with served.session.options(served.url + "/v1/completions", headers=headers) as response:
        assert response.headers["Access-Control-Allow-Headers"] == asked
    narrow: Served = await serve(allowed_origins=("https://page.example",), allowed_headers=("Content-Type",))
    async with narrow.session.options(narrow.url + "/v1/completions", headers=headers) as response:
        assert response.headers["Access-Control-Allow-Headers"] == "Content-Type"


async def test_a_stream_can_be_read_too(serve) -> None:
    served: Served = await serve(allowed_origins=("*",))
    body = {"prompt": "a", "stream": True}
    async with served.session.post(served.url + "/v1/completions", json=body, headers=PAGE) as response:
        assert response.headers["Access-Control-Allow-Origin"] == "*"
        assert b"[DONE]" in await response.read()


async def test_another_page_may_not(serve) -> None:
    served: Served = await serve(allowed_origins=("https://page.example",))
    other = {"Origin": "https://page.example.evil"}
    answer = await served.post("/v1/completions", {"prompt": "a"}, headers=other)
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert answer.headers["Vary"] == "Origin"


async def test_credentials(serve) -> None:
    with pytest.raises(ParameterError, match="allow_credentials"):
        ServerConfig(allowed_origins=("*",), allow_credentials=True)
    served: Served = await serve(allowed_origins=("https://page.example",), allow_credentials=True)
    answer = await served.get("/healthz", headers=PAGE)
    assert answer.headers["Access-Control-Allow-Credentials"] == "true"
