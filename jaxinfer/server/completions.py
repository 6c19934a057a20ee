"""POST /v1/completions."""

import time

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from jaxinfer.server.body import read_body
from jaxinfer.server.context import CONTEXT, Context, reply_id
from jaxinfer.server.generation import Generation, Step
from jaxinfer.server.logprobs import TextOffsets, completion_logprobs, prompt_logprobs
from jaxinfer.server.params import completion_params, fit_length
from jaxinfer.server.prompts import completion_prompts
from jaxinfer.server.responses import Completion, CompletionChoice, CompletionLogprobs, Usage
from jaxinfer.server.schema import CompletionBody
from jaxinfer.server.stream import stream_reply, whole_reply
from jaxinfer.text import ChoiceDelta, Tokenizer


async def completions(request: web.Request) -> web.StreamResponse:
    """Continues texts, or token ids. Choice j of prompt i has the index i·n + j."""
    context = request.app[CONTEXT]
    body = await read_body(request, CompletionBody)
    context.check_model(body.model)
    name = reply_id("cmpl")
    generation = await _prepare(name, context, body)
    reply = _Reply(name, context, body)
    async with generation:
        if body.stream:
            return await stream_reply(request, body.stream_options, generation, reply)
        return await whole_reply(generation, reply, large=body.prompt_logprobs is not None)


async def _prepare(name: str, context: Context, body: CompletionBody) -> Generation:
    info = context.client.info
    params = completion_params(body, context.text.defaults, info)
    prompts = await completion_prompts(body, context.text, info, context.options.max_prompts)
    asked_by = None if body.max_tokens is None else "max_tokens"
    fitted = [fit_length(prompt.token_ids, params, info, param=prompt.param, asked_by=asked_by) for prompt in prompts]
    return context.generation(name, [prompt.token_ids for prompt in prompts], fitted, body)


class _Reply:
    """The choices of one reply, as chunks or whole."""

    def __init__(self, name: str, context: Context, body: CompletionBody):
        self._name = name
        self._created = int(time.time())
        self._model = context.model_name
        self._tokenizer: Tokenizer = context.text.tokenizer
        self._n = body.n or 1
        self._skip_special_tokens = body.skip_special_tokens is not False
        self._offsets: dict[int, TextOffsets] = {}

    def first(self) -> list[CompletionChoice]:
        """Nothing comes before the first token."""
        return []

    def choices(self, step: Step) -> list[CompletionChoice]:
        """What a step adds, without the choices to which it adds nothing that shows."""
        return [
            self._choice(step.prompt_index * self._n + delta.index, delta)
            for delta in step.deltas
            if delta.text or delta.logprobs or delta.finish_reason
        ]

    def chunk(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> msgspec.Struct:
        """An event of a stream."""
        return Completion(self._name, self._created, self._model, choices, usage)

    def whole(self, parts: list[CompletionChoice], generation: Generation) -> bytes:
        """The reply from all that the steps added, as JSON."""
        by_index: dict[int, list[CompletionChoice]] = {}
        for part in parts:
            by_index.setdefault(part.index, []).append(part)
        choices = [self._join(by_index[index], generation) for index in sorted(by_index)]
        return msgspec.json.encode(self.chunk(choices, generation.usage()))

    def _choice(self, index: int, delta: ChoiceDelta) -> CompletionChoice:
        logprobs = None
        if delta.logprobs is not None:
            offsets = self._offsets.get(index)
            if offsets is None:
                offsets = TextOffsets(self._tokenizer, skip_special_tokens=self._skip_special_tokens)
                self._offsets[index] = offsets
            logprobs = completion_logprobs(delta.logprobs, self._tokenizer, offsets)
        return CompletionChoice(index, delta.text, logprobs, delta.finish_reason, delta.stop_reason)

    def _join(self, parts: list[CompletionChoice], generation: Generation) -> CompletionChoice:
        last, entries = parts[-1], generation.prompt_logprobs(parts[0].index // self._n)
        return CompletionChoice(
            index=last.index,
            text="".join(part.text for part in parts),
            logprobs=_join_logprobs([part.logprobs for part in parts if part.logprobs is not None]),
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            prompt_logprobs=UNSET if entries is None else prompt_logprobs(entries, self._tokenizer),
        )


def _join_logprobs(parts: list[CompletionLogprobs]) -> CompletionLogprobs | None:
    if not parts:
        return None
    return CompletionLogprobs(
        tokens=[token for part in parts for token in part.tokens],
        token_logprobs=[logprob for part in parts for logprob in part.token_logprobs],
        top_logprobs=[top for part in parts for top in part.top_logprobs],
        text_offset=[offset for part in parts for offset in part.text_offset],
    )
