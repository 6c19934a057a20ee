"""JaxinferClient: an async client of jaxinfer.v1.Jaxinfer."""

import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Self, TypedDict, Unpack

import grpc

from jaxinfer.errors import EngineDeadError, JaxinferError, ParameterError, QueueFullError
from jaxinfer.rpc import jaxinfer_pb2 as pb
from jaxinfer.rpc import jaxinfer_pb2_grpc

# The server bounds what it sends.
_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class GenerateFields(TypedDict, total=False):
    """Parameters of a request, as jaxinfer.proto describes them; None is not said."""

    request_id: str | None
    model: str | None
    n: int | None
    max_tokens: int | None
    min_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    logprobs: int | None
    prompt_logprobs: int | None
    stop: Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    include_stop_str_in_output: bool | None
    ignore_eos: bool | None
    skip_special_tokens: bool | None
    add_special_tokens: bool | None
    truncate_prompt_tokens: int | None
    priority: int | None
    cache_salt: str | None
    sampling: Mapping[str, float] | None
    structured_outputs: Mapping[str, Any] | pb.StructuredOutputs | None
    allowed_token_ids: Sequence[int] | None
    bad_words: Sequence[str] | None


class JaxinferClient:
    """Speaks to `jaxinfer serve MODEL --grpc-port PORT` at HOST:PORT. An async context manager.

    Messages are those of jaxinfer.proto. Every method raises ParameterError where the server names a field that is
    wrong, QueueFullError (`retry_after` in seconds), EngineDeadError where the engine or the server is not there, and
    JaxinferError for everything else, an aborted request included.
    """

    def __init__(self, address: str, *, api_key: str | None = None):
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._stub = jaxinfer_pb2_grpc.JaxinferStub(self._channel)
        self._metadata = () if api_key is None else (("authorization", f"Bearer {api_key}"),)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends what is open."""
        await self._channel.close()

    async def generate(
        self, prompt: str | Sequence[int], **options: Unpack[GenerateFields]
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Continues a text or token ids; what comes is what the engine adds, and at last the usage.

        A reader that leaves early ends the request, at once where it closes the iterator (`contextlib.aclosing`).
        """
        with _errors():
            call = self._stub.Generate(_request(prompt, options), metadata=self._metadata)
            try:
                async for response in call:
                    yield response
            finally:
                call.cancel()

    async def abort(self, request_id: str) -> int:
        """Ends the requests of this id; how many there were. See jaxinfer.proto for servers of several processes."""
        with _errors():
            request = pb.AbortRequest(request_id=request_id)
            return (await self._stub.Abort(request, metadata=self._metadata)).aborted

    async def model(self) -> pb.GetModelResponse:
        """Return the served model."""
        with _errors():
            return await self._stub.GetModel(pb.GetModelRequest(), metadata=self._metadata)

    async def statistics(self) -> dict[str, float]:
        """The engine's newest statistics, by name."""
        with _errors():
            answer = await self._stub.GetStatistics(pb.GetStatisticsRequest(), metadata=self._metadata)
            return dict(answer.values)

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        with _errors():
            request = pb.TokenizeRequest(text=text, add_special_tokens=add_special_tokens)
            return list((await self._stub.Tokenize(request, metadata=self._metadata)).token_ids)

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        with _errors():
            request = pb.DetokenizeRequest(token_ids=token_ids, skip_special_tokens=skip_special_tokens)
            return (await self._stub.Detokenize(request, metadata=self._metadata)).text


def _request(prompt: str | Sequence[int], options: GenerateFields) -> pb.GenerateRequest:
    said: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name, value in said.items():
        try:
            pb.GenerateRequest(**{name: value})
        except (TypeError, ValueError, OverflowError) as error:
            raise ParameterError(name, str(error)) from None
    if isinstance(prompt, str):
        return pb.GenerateRequest(text=prompt, **said)
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), **said)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        _raise(error)


def _raise(error: grpc.aio.AioRpcError) -> NoReturn:
    code, details = error.code(), error.details() or ""
    said = dict(error.trailing_metadata() or ())
    if code is grpc.StatusCode.INVALID_ARGUMENT and "jaxinfer-field" in said:
        field = str(said["jaxinfer-field"])
        raise ParameterError(field, details.removeprefix(f"{field}: ")) from error
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "retry-after" in said:
        full = QueueFullError(0, int(said["retry-after"]))
        full.args = (details,)  # the server knows how many wait
        raise full from error
    if code is grpc.StatusCode.UNAVAILABLE:
        raise EngineDeadError(details) from error
    raise JaxinferError(f"{code.name}: {details}") from error
