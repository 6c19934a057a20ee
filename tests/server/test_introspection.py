"""What gateways and operators ask: models, load, tokenizer, settings; the names of a hosting platform."""

import dataclasses
import json

import pytest

from jaxinfer.engine.types import ModelInfo
from jaxinfer.server.introspection import SHOWN_SETTINGS, fingerprint_of
from jaxinfer.serving.config import ServerConfig
from tests.server.conftest import Served
from tests.server.conversation import CHAT
from tests.server.openai_error import check


async def test_the_model_names_its_root(serve) -> None:
    served: Served = await serve(served_model_name="mine")
    model = (await served.get("/v1/models")).body["data"][0]
    assert (model["id"], model["root"], model["parent"]) == ("mine", "fake", None)
    listed = (await served.client.models.list()).data[0]
    assert listed.id == "mine"


async def test_default_and_no_name_mean_the_served_model(serve) -> None:
    served: Served = await serve(served_model_name="mine")
    for body in ({}, {"model": "default"}, {"model": "mine"}):
        answer = await served.post("/v1/completions", {"prompt": "a", **body})
        assert (answer.status, answer.body["model"]) == (200, "mine")
    check(await served.post("/v1/completions", {"prompt": "a", "model": "other"}), 404, "model")


async def test_the_load_is_that_of_the_engine(serve) -> None:
    served: Served = await serve(sse_keep_alive_interval=0.01)
    assert (await served.get("/load")).body == {"server_load": 0}
    served.engine.gate.clear()
    stream = await served.client.completions.create(model="fake", prompt="a", stream=True)
    assert (await served.get("/load")).body == {"server_load": 1}
    loads = (await served.get("/v1/loads")).body
    assert (loads["dp_rank_count"], loads["loads"][0]["num_running_reqs"], loads["loads"][0]["dp_rank"]) == (1, 1, 0)
    assert loads["loads"][0]["num_used_tokens"] == 32
    assert loads["aggregate"]["total_reqs"] == 1
    served.engine.gate.set()
    assert [chunk async for chunk in stream]
    assert (await served.get("/load")).body == {"server_load": 0}


async def test_no_load_of_a_dead_engine(serve) -> None:
    served: Served = await serve()
    served.engine.die()
    check(await served.get("/load"), 503, None)
    check(await served.get("/v1/loads"), 503, None)


async def test_the_tokenizer(serve, folder) -> None:
    served: Served = await serve()
    body = (await served.get("/tokenizer_info")).body
    said = json.loads((folder / "tokenizer_config.json").read_text())
    assert body == {"tokenizer_class": "PreTrainedTokenizerFast", **said}


async def test_settings_without_the_key(serve) -> None:
    collector = "http://user:secret@127.0.0.1:4317"
    served: Served = await serve(api_key="secret", max_choices=77, otlp_traces_endpoint=collector)
    for path in ("/server_info", "/tokenizer_info", "/v1/loads"):
        check(await served.get(path), 401, None)
    async with served.session.get(served.url + "/server_info", headers={"X-Api-Key": "secret"}) as response:
        text = await response.text()
    assert "secret" not in text
    info = json.loads(text)
    assert (info["model"], info["server_config"]["max_choices"]) == ("fake", 77)
    assert info["model_info"]["max_model_len"] == 256
    assert (info["model_info"]["dtype"], info["model_info"]["weights"]) == ("float32", "float32")
    assert info["system_env"]["jax"]


async def test_a_key_by_either_header(serve) -> None:
    served: Served = await serve(api_key="secret")
    for headers, status in (
        ({"X-Api-Key": "secret"}, 200), ({"Authorization": "Bearer secret"}, 200), ({"X-Api-Key": "wrong"}, 401),
        ({"X-Api-Key": "wrong", "Authorization": "Bearer secret"}, 200), ({"Authorization": "Basic secret"}, 401),
        ({}, 401), ({"X-Api-Key": ""}, 401),
    ):  # fmt: skip
        answer = await served.post("/v1/completions", {"prompt": "a"}, headers=headers)
        assert answer.status == status, headers


async def test_the_names_of_a_hosting_platform(serve) -> None:
    served: Served = await serve(api_key="secret")
    key = {"Authorization": "Bearer secret"}
    chat = await served.post("/invocations", {"messages": CHAT}, headers=key)
    assert chat.body["object"] == "chat.completion"
    assert (await served.post("/invocations", {"prompt": "a"}, headers=key)).body["object"] == "text_completion"
    check(await served.post("/invocations", {}, headers=key), 400, "prompt", "either")
    check(await served.post("/invocations", data=b"{", headers={**key, "Content-Type": "application/json"}), 400, None)
    check(await served.post("/invocations", {"prompt": "a"}), 401, None)
    assert (await served.get("/ping")).status == 200


@pytest.mark.parametrize(
    "changes", [{"dtype": "bfloat16"}, {"weights": "int8 per row"}, {"kv_cache_dtype": "fp8"}, {"mesh": "tensor=2"}]
)
def test_the_fingerprint_changes_with_types_and_the_mesh(changes: dict[str, str]) -> None:
    info = ModelInfo("m", 64, 61, 4, 4, 40)
    assert fingerprint_of(info) != fingerprint_of(info._replace(**changes))
    assert fingerprint_of(info) == fingerprint_of(info._replace(num_blocks=41))


ADDRESSES_AND_SECRETS = {
    "host", "port", "grpc_port", "api_key", "api_key_file", "engine_address", "otlp_traces_endpoint", "allowed_hosts",
    "allowed_origins", "allowed_methods", "allowed_headers", "allow_credentials", "log_level", "access_log",
}  # fmt: skip


def test_every_setting_is_shown_or_hidden_on_purpose() -> None:
    names = {field.name for field in dataclasses.fields(ServerConfig)}
    assert names == {*SHOWN_SETTINGS} | ADDRESSES_AND_SECRETS
    assert not {*SHOWN_SETTINGS} & ADDRESSES_AND_SECRETS
