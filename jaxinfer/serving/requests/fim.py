"""Filling in the middle, in Mistral's form: what stands between a prompt and a suffix."""

from typing import Any

import msgspec

from jaxinfer.serving.bodies.chat_schema import ChatBody
from jaxinfer.serving.bodies.schema import CompletionBody, GenerateBody
from jaxinfer.serving.requests.endpoint import Endpoint, ModelSide, Prepared, check_common, without_effect_dropped
from jaxinfer.serving.requests.params import check_fim, engine_request, fim_params, generate_params
from jaxinfer.text.tokenizer.bad_words import with_bad_token_ids


class FimBody(GenerateBody, forbid_unknown_fields=True, kw_only=True):
    """random_seed: Mistral's name of seed. parse_special: of CompletionBody."""

    prompt: str
    suffix: str | None = None
    random_seed: int | None = None
    parse_special: bool | None = None


def _check(body: FimBody, side: ModelSide) -> list[str]:
    check_common(body, side)
    check_fim(body)
    return []


async def _prepare(body: FimBody, side: ModelSide) -> Prepared:
    text = side.text
    params = generate_params(CompletionBody(prompt=body.prompt, **_common_fields(body)), text.defaults, side.info)
    params = with_bad_token_ids(fim_params(params, text.fim.end_ids), text.tokenizer)
    special, parse = body.add_special_tokens is not False, body.parse_special is not False
    ids = await text.fim_prompt(body.prompt, body.suffix or "", add_special_tokens=special, parse_special=parse)
    return [(engine_request(ids, params, side.info, body, "prompt"), None)]


def _common_fields(body: FimBody) -> dict[str, Any]:
    """Return the fields that it has in common with the other endpoints."""
    common = {field: getattr(body, field) for field in GenerateBody.__struct_fields__}
    common["seed"] = body.random_seed if body.seed is None else body.seed
    return common


def _slim(body: FimBody) -> FimBody:
    return msgspec.structs.replace(without_effect_dropped(body), prompt="", suffix=None)


def fim_as_chat(body: FimBody) -> ChatBody:
    """Its answer has the form of a chat's."""
    return ChatBody(messages=[], **_common_fields(body))


FIM = Endpoint("fim", FimBody, _check, _prepare, _slim, fim_as_chat)
