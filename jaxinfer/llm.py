"""LLM and AsyncLLM: the Python API, shaped as vLLM's offline API."""

import asyncio
import contextlib
import itertools
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxinfer.config import EngineConfig
from jaxinfer.config_tree import with_values
from jaxinfer.engine.client.sequence_ids import SequenceIds
from jaxinfer.engine.types import GenerateRequest, ModelInfo
from jaxinfer.engine.validation import CheckedRequest
from jaxinfer.errors import JaxinferError, ParameterError, QueueFullError
from jaxinfer.sampling import SamplingParams
from jaxinfer.text import ChoiceDelta, Tokenizer
from jaxinfer.text.answer.calls.argument_types import schemas_of
from jaxinfer.text.answer.parser import parse_answer
from jaxinfer.text.processor import SHORT_CHARS
from jaxinfer.text.request_output import CompletionOutput, Logprob, OutputCollector, RequestOutput
from jaxinfer.text.template.messages import template_message
from jaxinfer.text.template.tools import check_tools
from jaxinfer.text.tokenizer.bad_words import with_bad_token_ids

if TYPE_CHECKING:
    from jaxinfer.build import BuildProgress
    from jaxinfer.engine.core import EngineCore

__all__ = ["LLM", "AsyncLLM", "CompletionOutput", "Logprob", "RequestOutput"]

Prompt = str | Mapping[str, Any]
"""A text, `{"prompt": text}` or `{"prompt_token_ids": [...]}`; with `"prediction"`, a text or token ids, what the
output may be for the most part, which speculation by n-grams drafts from."""

_Work = tuple[CheckedRequest, OutputCollector]

DEFAULT_MAX_TOKENS = 16
"""Default of `max_tokens` if neither the caller nor generation_config.json gives one, as in vLLM."""


class LLM:
    """An engine in the caller's process, with no thread: `generate` runs its steps.

    model: a folder, a hub id, or `demo`. flags: settings of EngineConfig by name, `dtype="float32"`,
    `max_num_seqs=8`. config: a whole tree instead, which flags change. Raises ParameterError, ModelError.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        config: EngineConfig | None = None,
        progress: "BuildProgress | None" = None,
        **flags: Any,
    ):
        from jaxinfer.build import build_engine, load_text

        settings = engine_config(model, config, flags)
        self.text = load_text(settings)
        self.engine: EngineCore = build_engine(settings, progress).core
        self._ids = itertools.count()
        self._sequence_ids = SequenceIds()

    @property
    def info(self) -> ModelInfo:
        """The model served."""
        return self.engine.info

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.text.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the sampling parameters that generation_config.json declares."""
        return self.text.defaults.params(default_max_tokens=DEFAULT_MAX_TOKENS)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continues each prompt; the results stand in the order of the prompts.

        sampling_params: one for all, or one for each; None takes the model's defaults. use_tqdm: show a
        progress bar where standard error is a terminal. Raises ParameterError before anything runs.
        """
        if not isinstance(prompts, Iterable):
            raise ParameterError("prompts", f"must be a prompt or a list of prompts, not {type(prompts).__name__}")
        many = [prompts] if isinstance(prompts, str | Mapping) else list(prompts)
        return self._run_all(self._collectors(many, sampling_params), use_tqdm)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        prediction: str | Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answers a conversation, or each of several, by the model's chat template.

        An answer has at most `max_tokens` of the sampling parameters, 16 by default as in `generate`.
        prediction: what each answer may be for the most part, a text or token ids. tools: of OpenAI's form. An output's
        `text` is what the model wrote, and its `parsed` that text taken apart into content, reasoning and tool calls.
        A constraint holds as over HTTP: for content once the model has thought, beside calls of tools; calls of
        functions with `strict: true` follow their parameters. Control tokens in the messages are text. Raises
        ParameterError.
        """
        if tools is not None:
            check_tools(tools)
        one = bool(messages) and isinstance(messages[0], Mapping)
        prompts = []
        for conversation in [messages] if one else messages:
            rendered = self.text.conversations.encode(
                plain_messages(conversation),  # pyright: ignore[reportArgumentType]
                add_generation_prompt=add_generation_prompt,
                template_kwargs=chat_template_kwargs,
                tools=tools,
            )
            prompt = {"prompt": rendered.text, "prompt_token_ids": rendered.token_ids}
            prompts.append(prompt if prediction is None else {**prompt, "prediction": prediction})
        form = self.text.chat_template.form
        results = self._run_all(self._collectors(prompts, sampling_params, self._answers(tools)), use_tqdm)
        form = form.offering(schemas_of(tools or ()))
        for result in results:
            thinking = form.thinks(result.prompt or "")
            for output in result.outputs:
                output.parsed = parse_answer(output.text, form, thinking=thinking)
        return results

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[ChoiceDelta]:
        """Continues one prompt and yields what each step adds. Closing the iterator ends the request."""
        with contextlib.closing(self._run(self._collectors([prompt], sampling_params))) as steps:
            for _, delta in steps:
                yield delta

    def close(self) -> None:
        """Frees the device and ends the processes that render templates."""
        self.engine.close()
        self.text.close()

    def _answers(self, tools: Sequence[Mapping[str, Any]] | None) -> Callable[[SamplingParams, str], SamplingParams]:
        """Return a function from the parameters of a prompt to those of its answer, by the rules of the HTTP server."""
        from jaxinfer.serving.requests.structured import answer_params

        return partial(answer_params, tools or (), self.text.chat_template.form, self.text.tokenizer)

    def _collectors(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        change: Callable[[SamplingParams, str], SamplingParams] = lambda params, prompt: params,
    ) -> list[_Work]:
        shared = self.get_default_sampling_params() if params is None else params
        each = [shared] * len(prompts) if isinstance(shared, SamplingParams) else list(shared)
        if len(each) != len(prompts):
            raise ParameterError("sampling_params", f"has {len(each)} entries for {len(prompts)} prompts")
        made = []
        for i, (prompt, one) in enumerate(zip(prompts, each, strict=True)):
            encoded = encode_prompt(self.text.tokenizer, prompt, "prompts" if len(prompts) == 1 else f"prompts[{i}]")
            sampling = with_bad_token_ids(change(one, encoded.text or ""), self.text.tokenizer)
            request = encoded.request(str(next(self._ids)), sampling)
            collector = OutputCollector(self.text.tokenizer, request, encoded.text)
            made.append((self.engine.compile(self.engine.check(request)), collector))
        return made

    def _run_all(self, work: list[_Work], use_tqdm: bool) -> list[RequestOutput]:
        collectors = {checked.request.request_id: collector for checked, collector in work}
        with _progress_bar(use_tqdm, len(work)) as advance:
            for request_id, _ in self._run(work):
                if collectors[request_id].output.finished:
                    advance()
        return [collector.output for _, collector in work]

    def _run(self, work: list[_Work]) -> Generator[tuple[str, ChoiceDelta], None, None]:
        """Feeds the engine and runs its steps until every request has ended; ends those left where it is closed."""
        if self.engine.has_work():
            raise JaxinferError("a stream of this LLM is open; read it to its end or close it first")
        queued = iter(work)
        collectors: dict[str, OutputCollector] = {}
        waiting = next(queued, None)
        try:
            while waiting is not None or self.engine.has_work():
                while waiting is not None and self._add(waiting[0]):
                    collectors[waiting[0].request.request_id] = waiting[1]
                    waiting = next(queued, None)
                for delta in self._sequence_ids.expand(self.engine.step()):
                    shown = collectors[delta.request_id].push(delta)
                    if shown is not None:
                        if shown.stop_at is not None:
                            self.engine.stop(delta.request_id, delta.index)
                        yield delta.request_id, shown
        finally:
            self._abort([name for name, collector in collectors.items() if not collector.output.finished])

    def _add(self, checked: CheckedRequest) -> bool:
        try:
            self.engine.add(checked)
        except QueueFullError:
            return False
        return True

    def _abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self.engine.abort(request_id)
        while request_ids and self.engine.has_work():
            self._sequence_ids.expand(self.engine.step())


class AsyncLLM:
    """An engine in a thread of its own, for programs with an event loop. Arguments are LLM's."""

    def __init__(
        self,
        model: str | None = None,
        *,
        config: EngineConfig | None = None,
        progress: "BuildProgress | None" = None,
        **flags: Any,
    ):
        from jaxinfer.build import build_engine, load_text
        from jaxinfer.engine.client.local import LocalEngineClient

        settings = engine_config(model, config, flags)
        self.text = load_text(settings)
        self.client = LocalEngineClient(build_engine(settings, progress).core)

    @property
    def info(self) -> ModelInfo:
        """The model served."""
        return self.client.info

    async def generate(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, request_id: str | None = None
    ) -> AsyncIterator[RequestOutput]:
        """Continues a prompt; each item is everything so far. Leaving the loop early ends the request.

        Raises ParameterError, QueueFullError, EngineDeadError.
        """
        params = sampling_params or self.text.defaults.params(default_max_tokens=DEFAULT_MAX_TOKENS)
        params = with_bad_token_ids(params, self.text.tokenizer)
        encoded = await self._encode(prompt)
        request = encoded.request(request_id or uuid.uuid4().hex, params)
        collector = OutputCollector(self.text.tokenizer, request, encoded.text)
        source = await self.client.submit(request)
        try:
            async for deltas in source:
                for delta in deltas:
                    shown = collector.push(delta)
                    if shown is not None and shown.stop_at is not None:
                        self.client.stop(request.request_id, delta.index)
                yield collector.snapshot()
                if collector.output.finished:
                    return
        finally:
            if not collector.output.finished:
                self.client.abort(request.request_id)

    async def _encode(self, prompt: Prompt) -> "EncodedPrompt":
        texts = prompt.values() if isinstance(prompt, Mapping) else (prompt,)
        if sum(len(text) for text in texts if isinstance(text, str)) > SHORT_CHARS:
            return await asyncio.to_thread(encode_prompt, self.text.tokenizer, prompt, "prompt")
        return encode_prompt(self.text.tokenizer, prompt, "prompt")

    async def abort(self, request_id: str) -> None:
        """Ends a request: its iterator gives a last item, with finish_reason `abort`."""
        self.client.abort(request_id)

    async def close(self) -> None:
        """Ends everything and frees the device."""
        await self.client.close()
        self.text.close()


def engine_config(model: str | None, config: EngineConfig | None, flags: Mapping[str, Any]) -> EngineConfig:
    """The config tree from a model, a tree and keyword arguments. Raises ParameterError, naming the argument."""
    given = {"model": str(model), **flags} if model is not None else flags
    return with_values(config or EngineConfig(), given)


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages with their content as one text. Raises ParameterError."""
    plain = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ParameterError(f"messages[{i}]", "must be a mapping with `role` and `content`")
        plain.append(template_message(message, f"messages[{i}]"))
    return plain


class EncodedPrompt(NamedTuple):
    """A prompt's text, where it has one, and its token ids and those of its prediction."""

    text: str | None
    token_ids: list[int]
    prediction: list[int]

    def request(self, request_id: str, sampling: SamplingParams) -> GenerateRequest:
        """Return the request to submit to an engine."""
        return GenerateRequest(request_id, self.token_ids, sampling, prediction=self.prediction)


def encode_prompt(tokenizer: Tokenizer, prompt: Prompt, param: str) -> EncodedPrompt:
    """param: what errors call the prompt. Raises ParameterError."""
    given = prompt if isinstance(prompt, Mapping) else {"prompt": prompt}
    if unknown := given.keys() - _PROMPT_KEYS:
        raise ParameterError(f"{param}.{min(unknown)}", f"is not supported; {', '.join(_PROMPT_KEYS)} are")
    text, ids = given.get("prompt"), given.get("prompt_token_ids")
    if ids is not None:
        ids = _integers(ids, f"{param}.prompt_token_ids")
    elif isinstance(text, str):
        ids = tokenizer.encode(text, param=param)
    else:
        raise ParameterError(param, 'must be a text, {"prompt": text} or {"prompt_token_ids": [...]}')
    return EncodedPrompt(text, ids, _encode_prediction(tokenizer, given.get("prediction"), f"{param}.prediction"))


_PROMPT_KEYS = ("prompt", "prompt_token_ids", "prediction")


def _encode_prediction(tokenizer: Tokenizer, prediction: Any, param: str) -> list[int]:
    if prediction is None:
        return []
    if isinstance(prediction, str):
        return tokenizer.encode(prediction, add_special_tokens=False, param=param, parse_special=False)
    return _integers(prediction, param)


def _integers(ids: Any, param: str) -> list[int]:
    is_list = isinstance(ids, Iterable) and not isinstance(ids, str | Mapping)
    if not is_list or not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        raise ParameterError(param, "must be a list of integers")
    return list(ids)


@contextlib.contextmanager
def _progress_bar(show: bool, total: int) -> Iterator[Any]:
    if not (show and sys.stderr.isatty()):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("prompts", total=total)
        yield lambda: progress.advance(task)
