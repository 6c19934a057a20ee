"""Stored responses: what is kept, for whom, how long, and how it is listed."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.serving.bodies.structure import LARGE_BYTES
from jaxinfer.serving.response_store import Chunk, ResponseStore, StoredResponse
from tests.server import openai_schema
from tests.server.conftest import Served
from tests.server.conversation import TEMPLATE
from tests.server.openai_error import check
from tests.text.folders import byte_level_folder

PATH = "/v1/responses"
OWNERS = ("ann", "ben", "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return byte_level_folder(tmp_path / "model", chat_template=TEMPLATE)


def prompt(served: Served, number: int = -1) -> str:
    ids = served.engine.submitted[number].prompt_token_ids
    return served.engine.tokenizer.decode(ids, skip_special_tokens=False)


async def test_a_response_is_kept_until_it_is_deleted(serve) -> None:
    served: Served = await serve()
    made = (await served.post(PATH, {"input": "hi"})).body
    assert (await served.get(f"{PATH}/{made['id']}")).body == made
    assert await served.client.responses.retrieve(made["id"])
    async with served.session.delete(f"{served.url}{PATH}/{made['id']}") as response:
        assert (response.status, await response.json()) == (
            200, {"id": made["id"], "object": "response", "deleted": True}
        )  # fmt: skip
    for path in ("", "/input_items"):
        check(await served.get(f"{PATH}/{made['id']}{path}"), 404, None, "not found")
    check(await served.post(PATH, {"input": "a", "previous_response_id": made["id"]}), 400, "previous_response_id")
    async with served.session.delete(f"{served.url}{PATH}/{made['id']}") as response:
        assert response.status == 404


async def test_nothing_is_kept_where_it_is_not_wanted(serve) -> None:
    served: Served = await serve()
    made = (await served.post(PATH, {"input": "hi", "store": False})).body
    assert made["store"] is False
    check(await served.get(f"{PATH}/{made['id']}"), 404, None, "not found")
    none: Served = await serve(max_stored_responses=0)
    made = (await none.post(PATH, {"input": "hi"})).body
    check(await none.get(f"{PATH}/{made['id']}"), 404, None, "not found")


async def test_a_conversation_goes_on_without_its_instructions(serve) -> None:
    served: Served = await serve()
    first = (await served.post(PATH, {"input": "one", "instructions": "Be short."})).body
    second = (await served.post(PATH, {"input": "two", "previous_response_id": first["id"]})).body
    async with served.session.delete(f"{served.url}{PATH}/{first['id']}") as response:
        assert response.status == 200
    third = {"input": "three", "previous_response_id": second["id"], "instructions": "Be long.", "stream": True}
    async with served.session.post(served.url + PATH, json=third) as response:
        assert response.status == 200
        await response.read()
    said = "<|user|>one<|end|><|assistant|>hello world<|end|><|user|>two<|end|><|assistant|>hello world<|end|>"
    assert prompt(served) == f"<|system|>Be long.<|end|>{said}<|user|>three<|end|><|assistant|>"
    assert second["previous_response_id"] == first["id"]


async def test_an_item_may_be_referred_to(serve) -> None:
    served: Served = await serve()
    first = (await served.post(PATH, {"input": "one"})).body
    (item,) = first["output"]
    references = [{"type": "item_reference", "id": item["id"]}, {"id": item["id"]}]
    for reference in references:
        answer = await served.post(PATH, {"input": [{"role": "user", "content": "a"}, reference]})
        assert answer.status == 200, answer.body
        assert prompt(served) == "<|user|>a<|end|><|assistant|>hello world<|end|><|assistant|>"


async def test_a_large_body_is_joined_and_kept_as_a_small_one(serve) -> None:
    served: Served = await serve()
    served.engine.info = served.engine.info._replace(max_model_len=200_000)
    words = "word " * LARGE_BYTES
    first = (await served.post(PATH, {"input": words})).body
    small = (await served.post(PATH, {"input": "b", "previous_response_id": first["id"]})).body
    assert prompt(served) == (f"<|user|>{words}<|end|><|assistant|>hello world<|end|><|user|>b<|end|><|assistant|>")
    large = {"input": [{"role": "user", "content": words}, {"role": "user", "content": 5}]}
    check(await served.post(PATH, {**large, "previous_response_id": small["id"]}), 400, "input[1].content", "must be")
    listed = (await served.get(f"{PATH}/{small['id']}/input_items?order=asc")).body["data"]
    assert [item["content"][0]["text"] for item in listed] == [words, "hello world", "b"]


async def test_the_items_are_listed_in_pages(serve) -> None:
    served: Served = await serve()
    first = (await served.post(PATH, {"input": [{"role": "user", "content": str(i)} for i in range(5)]})).body
    items = [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
             {"type": "function_call_output", "call_id": "c", "output": "d"}]  # fmt: skip
    last = (await served.post(PATH, {"input": items, "previous_response_id": first["id"]})).body
    url = f"{PATH}/{last['id']}/input_items"
    whole = (await served.get(url + "?order=asc")).body
    assert [item["type"] for item in whole["data"]] == ["message"] * 6 + ["function_call", "function_call_output"]
    assert len({item["id"] for item in whole["data"]}) == 8
    assert (await served.get(url)).body["data"] == whole["data"][::-1]
    for limit in (1, 3, 8):
        pages, after = [], ""
        while True:
            page = (await served.get(f"{url}?order=asc&limit={limit}{after}")).body
            pages += page["data"]
            assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
            if not page["has_more"]:
                break
            after = f"&after={page['last_id']}"
        assert pages == whole["data"]
    listed = [item async for item in served.client.responses.input_items.list(last["id"], limit=2, order="asc")]
    assert [item.id for item in listed] == [item["id"] for item in whole["data"]]
    for query, param in (("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("after=x", "after")):
        check(await served.get(f"{url}?{query}"), 400, param)


async def test_only_its_owner_finds_a_response(serve, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    keys.chmod(0o600)
    served: Served = await serve(api_key_file=str(keys))
    headers = {key: {"Authorization": f"Bearer {key}"} for key in ("one", "two")}
    made = (await served.post(PATH, {"input": "hi"}, headers=headers["one"])).body
    (item,) = made["output"]
    assert (await served.get(f"{PATH}/{made['id']}", headers=headers["one"])).status == 200
    check(await served.get(f"{PATH}/{made['id']}", headers=headers["two"]), 404, None)
    check(await served.get(f"{PATH}/{made['id']}"), 401, None)
    check(await served.post(f"{PATH}/{made['id']}/cancel", {}, headers=headers["two"]), 404, None)
    follow = {"input": "a", "previous_response_id": made["id"]}
    check(await served.post(PATH, follow, headers=headers["two"]), 400, "previous_response_id")
    refer = {"input": [{"type": "item_reference", "id": item["id"]}]}
    check(await served.post(PATH, refer, headers=headers["two"]), 404, "input[0].id")
    assert (await served.post(PATH, refer, headers=headers["one"])).status == 200


async def test_what_a_stored_response_cannot(serve) -> None:
    served: Served = await serve(api_workers=2)
    made = (await served.post(PATH, {"input": "hi"})).body
    check(await served.post(f"{PATH}/{made['id']}/cancel", {}), 400, None, "background")
    check(await served.get(f"{PATH}/{made['id']}?stream=true"), 400, "stream")
    check(await served.get(f"{PATH}/resp_absent"), 404, None, "each of the 2 API processes")


def response(draw: random.Random, number: int, before: StoredResponse | None) -> StoredResponse:
    history = () if before is None else before.conversation
    own, output = (Chunk(tuple(draw.randbytes(draw.randint(0, 300)) for _ in range(draw.randint(1, 3)))) for _ in "ab")
    ids = tuple(f"item{number}.{i}" for i in range(len(output.items)))
    return StoredResponse(f"resp{number}", draw.randbytes(draw.randint(0, 200)), history, own, output, ids)


def size(responses: list[StoredResponse]) -> int:
    """Bytes of the items that responses have, each once, and of the replies."""
    chunks = {id(chunk): chunk for one in responses for chunk in one.conversation}
    return sum(sum(map(len, chunk.items)) for chunk in chunks.values()) + sum(len(one.reply) for one in responses)


@pytest.mark.parametrize("seed", range(40))
def test_random_histories_follow_the_rules(seed: int) -> None:
    """Against a list of what each owner has, the oldest first."""
    draw = random.Random(seed)
    most, most_bytes = draw.randint(1, 12), draw.choice([3_000, 20_000, 10**9])
    store, kept = ResponseStore(most, most_bytes), {owner: [] for owner in OWNERS}
    for number in range(200):
        owner = draw.choices(OWNERS, weights=(6, 2, 1))[0]
        mine: list[StoredResponse] = kept[owner]
        match draw.randrange(4):
            case 0 if mine:
                gone = mine.pop(draw.randrange(len(mine)))
                assert store.delete(owner, gone.id)
                assert not store.delete(owner, gone.id)
            case _:
                made = response(draw, number, draw.choice(mine) if mine and draw.random() < 0.6 else None)
                store.put(owner, made)
                mine.append(made)
                dropped = drop_what_is_gone(store, kept)
                check_dropped(dropped, made, most, most_bytes)
        check_all(store, kept)
        assert store.num_responses <= most
        assert store.num_bytes <= most_bytes
        assert sum(map(size, kept.values())) <= store.num_bytes or store.num_bytes == 0
    for owner, mine in kept.items():
        for one in list(mine):
            store.delete(owner, one.id)
    assert (store.num_responses, store.num_bytes) == (0, 0)


def drop_what_is_gone(store: ResponseStore, kept: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The ids that the store has dropped of each owner; only the oldest may go, and one too large for the store."""
    dropped = {}
    for owner, mine in kept.items():
        dropped[owner] = [one for one in mine if store.get(owner, one.id) is None]
        kept[owner] = [one for one in mine if store.get(owner, one.id) is not None]
        assert mine == dropped[owner] + kept[owner] or mine == kept[owner] + dropped[owner]
    return dropped


def check_dropped(dropped: dict[str, list[Any]], made: StoredResponse, most: int, most_bytes: int) -> None:
    """The newest stays if it fits, with what it needs beside its texts; others go only where there is no room."""
    gone = [one for each in dropped.values() for one in each]
    if most_bytes == 10**9:
        assert len(gone) <= 1, "one came, and one goes at most"
    if made in gone:
        items = sum(len(chunk.items) for chunk in made.conversation)
        assert gone == [made]
        assert size([made]) + 1000 + 200 * items > most_bytes


def check_all(store: ResponseStore, kept: dict[str, list[Any]]) -> None:
    for owner in OWNERS:
        for one in kept[owner]:
            assert store.get(owner, one.id) is one
            assert [store.item(owner, item_id) for item_id in one.output_ids] == list(one.output.items)
            assert all(store.get(other, one.id) is None for other in OWNERS if other != owner)


def test_one_owner_does_not_drive_out_another() -> None:
    draw, store = random.Random(0), ResponseStore(4, 10**9)
    store.put("ben", response(draw, 0, None))
    for number in range(1, 50):
        store.put("ann", response(draw, number, None))
    assert store.get("ben", "resp0") is not None
    assert [number for number in range(1, 50) if store.get("ann", f"resp{number}")] == [47, 48, 49]


async def test_inputs_that_wait_are_bounded_too(serve) -> None:
    served: Served = await serve(max_stored_response_bytes=4000)
    served.engine.gate.clear()
    bodies = [{"input": [{"role": "user", "content": str(i) * 50}], "max_output_tokens": 5} for i in range(40)]
    tasks = [asyncio.create_task(served.post(PATH, body)) for body in bodies]
    while len(served.engine.active) < len(bodies):
        await asyncio.sleep(0.01)
    served.engine.gate.set()
    made = [answer.body["id"] for answer in await asyncio.gather(*tasks)]
    statuses = [(await served.get(f"{PATH}/{name}")).status for name in made]
    assert 0 < statuses.count(200) < 20
    assert (await served.get(f"{PATH}/{(await served.post(PATH, bodies[0])).body['id']}")).status == 200


async def test_a_deleted_response_is_valid_by_openais_schema(serve) -> None:
    served: Served = await serve()
    made = (await served.post(PATH, {"input": "hi"})).body
    async with served.session.delete(f"{served.url}{PATH}/{made['id']}") as response:
        openai_schema.check("DeleteModelResponse", json.loads(await response.read()))
