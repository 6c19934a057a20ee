"""API keys from a file."""

import logging
from pathlib import Path

import pytest

from jaxinfer.errors import ParameterError
from jaxinfer.serving.api_keys import read_api_keys
from jaxinfer.serving.config import ServerConfig, check_binding
from tests.server.conftest import Served
from tests.server.openai_error import check


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("# of the first team\nfirst\n\n  second \n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("key", ["first", "second", "third"])
async def test_each_key_lets_in(serve, file: Path, key: str) -> None:
    served: Served = await serve(api_key_file=str(file), api_key="third")
    for headers in ({"Authorization": f"Bearer {key}"}, {"X-Api-Key": key}):
        assert (await served.get("/v1/models", headers=headers)).status == 200


@pytest.mark.parametrize("key", ["", "# of the first team", "first second", "fourth"])
async def test_nothing_else_does(serve, file: Path, key: str) -> None:
    served: Served = await serve(api_key_file=str(file))
    check(await served.get("/v1/models", headers={"Authorization": f"Bearer {key}"}), 401, None)
    check(await served.get("/v1/models"), 401, None)


def test_a_file_that_others_can_read_is_warned_of(file: Path, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        assert read_api_keys(str(file)) == ("first", "second")
        assert caplog.records == []
        other = file.with_name("open")
        other.write_text("key")
        other.chmod(0o644)
        read_api_keys(str(other))
    assert ["chmod 600" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("content", [None, b"", b"# none\n", b"\xff\xfe"])
def test_a_file_without_keys_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ParameterError, match="api_key_file: "):
        assert ServerConfig(api_key_file=str(file)).api_keys


def test_a_file_of_keys_opens_the_server_to_others(file: Path) -> None:
    check_binding(ServerConfig(host="0.0.0.0", api_key_file=str(file)))
