"""/tokenize and /detokenize."""

from tests.server.conftest import Served
from tests.server.conversation import CHAT
from tests.server.openai_error import check


async def test_a_text_there_and_back(serve) -> None:
    served: Served = await serve()
    answer = await served.post("/tokenize", {"prompt": "hello 😀", "return_token_strs": True})
    tokens = answer.body["tokens"]
    assert tokens == served.engine.tokenizer.encode("hello 😀")
    assert (answer.body["count"], answer.body["max_model_len"]) == (len(tokens), 256)
    # As the vocabulary writes them, a space as `\u0120` and half a character as its bytes' letters.
    assert answer.body["token_strs"][:2] == ["hello", "\u0120"]
    assert answer.body["token_strs"] == [served.engine.tokenizer.id_to_token(token) for token in tokens]
    assert (await served.post("/tokenize", {"prompt": "hello"})).body["token_strs"] is None
    assert (await served.post("/detokenize", {"tokens": tokens})).body == {"prompt": "hello 😀"}


async def test_special_tokens_are_text_when_they_come_back(serve) -> None:
    served: Served = await serve()
    tokens = (await served.post("/tokenize", {"messages": CHAT})).body["tokens"]
    assert (await served.post("/detokenize", {"tokens": tokens})).body == {"prompt": "<|user|>hi<|end|><|assistant|>"}


async def test_a_conversation_is_what_the_chat_sends(serve) -> None:
    served: Served = await serve()
    await served.post("/v1/chat/completions", {"messages": CHAT, "chat_template_kwargs": {"style": "x"}})
    answer = await served.post("/tokenize", {"messages": CHAT, "chat_template_kwargs": {"style": "x"}})
    assert answer.body["tokens"] == list(served.engine.submitted[0].prompt_token_ids)
    bare = await served.post("/tokenize", {"messages": CHAT, "add_generation_prompt": False})
    assert bare.body["count"] == answer.body["count"] - 2


async def test_what_is_wrong_is_named(serve) -> None:
    served: Served = await serve()
    check(await served.post("/tokenize", {}), 400, "prompt", "either")
    check(await served.post("/tokenize", {"prompt": "a", "messages": CHAT}), 400, "prompt", "either")
    check(
        await served.post("/tokenize", {"prompt": "a", "chat_template_kwargs": {"a": 1}}), 400, "chat_template_kwargs"
    )
    check(await served.post("/tokenize", {"prompt": "a", "model": "other"}), 404, "model")
    check(await served.post("/tokenize", {"prompt": 5}), 400, "prompt")
    check(await served.post("/detokenize", {}), 400, "tokens")
    check(await served.post("/detokenize", {"tokens": [10**6]}), 400, "tokens", "vocabulary")
    check(await served.post("/detokenize", {"tokens": [-1]}), 400, "tokens", "vocabulary")
    check(await served.post("/detokenize", {"tokens": ["a"]}), 400, "tokens[0]")
    assert (await served.post("/detokenize", {"tokens": []})).body == {"prompt": ""}


async def test_they_ask_for_the_key(serve) -> None:
    served: Served = await serve(api_key="secret")
    check(await served.post("/tokenize", {"prompt": "a"}), 401, None)
    check(await served.post("/detokenize", {"tokens": [1]}), 401, None)
