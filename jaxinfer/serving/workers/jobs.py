"""Messages between API processes and their workers, as msgpack: nothing that is read can run code."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from jaxinfer.engine.types import GenerateRequest, ModelInfo
from jaxinfer.sampling import SamplingParams
from jaxinfer.serving.config import ServerConfig
from jaxinfer.serving.errors import ErrorKind
from jaxinfer.serving.requests.endpoint import Prepared


class WorkerSettings(msgspec.Struct):
    """Settings that a worker starts with. text: of `TextProcessor.settings`. options: without secrets."""

    text: dict[str, Any]
    options: ServerConfig
    model_name: str
    memory_bytes: int
    processor_seconds: int


class ReadBody(msgspec.Struct, tag="read"):
    """Read the body of an endpoint."""

    endpoint: str
    body: memoryview
    info: ModelInfo


class EncodeText(msgspec.Struct, tag="encode"):
    """Tokenise texts. params: what errors call each. most: of `Tokenizer.encode_batch`."""

    texts: list[str]
    params: list[str]
    add_special_tokens: bool
    most: int | None = None


class DecodeText(msgspec.Struct, tag="decode"):
    """The text of token ids."""

    ids: list[int]
    skip_special_tokens: bool


Job = ReadBody | EncodeText | DecodeText


class Requests(msgspec.Struct, tag="requests"):
    """A body that is prepared. body: JSON of what else it says. ignored: names of fields without effect.

    sampling: the parameters that its prompts share; several where a prompt is so long that its own are others.
    requests: token ids, four bytes each, the index of its parameters, the prompt's text where it came as one, and the
    prediction's token ids.
    """

    endpoint: str
    body: bytes
    ignored: list[str]
    sampling: list[SamplingParams]
    requests: list[tuple[bytes, int, str | None, bytes]]

    @classmethod
    def of(cls, endpoint: str, body: bytes, ignored: list[str], prepared: Prepared) -> "Requests":
        """Packs what was prepared."""
        params = {id(request.sampling): request.sampling for request, _ in prepared}
        index = {known: number for number, known in enumerate(params)}
        packed = [
            (pack_ids(one.prompt_token_ids), index[id(one.sampling)], text, pack_ids(one.prediction))
            for one, text in prepared
        ]
        return cls(endpoint, body, ignored, list(params.values()), packed)

    def prepared(self) -> Prepared:
        """Return the requests that were packed."""
        return [
            (GenerateRequest("", unpack_ids(ids), self.sampling[own], prediction=unpack_ids(prediction)), text)
            for ids, own, text, prediction in self.requests
        ]


class BodyAnswer(msgspec.Struct, tag="answer"):
    """A body that is answered. answer: JSON."""

    answer: bytes
    ignored: list[str]


class Ids(msgspec.Struct, tag="ids"):
    """Token ids of each text, four bytes each."""

    ids: list[bytes]


class Text(msgspec.Struct, tag="text"):
    """A text."""

    text: str


class BodyFailure(msgspec.Struct, tag="failure"):
    """A RequestError, by its attributes."""

    message: str
    kind: ErrorKind
    param: str | None
    code: str | None
    retry_after: int | None


Reply = Requests | BodyAnswer | Ids | Text | BodyFailure

encode = msgspec.msgpack.Encoder().encode
decode_job = msgspec.msgpack.Decoder(Job).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode


def pack_ids(ids: Sequence[int] | np.ndarray) -> bytes:
    """Token ids, four bytes each."""
    return np.asarray(ids, np.int32).tobytes()


def unpack_ids(data: bytes) -> np.ndarray:
    """The ids that were packed, int32 [n]."""
    return np.frombuffer(data, np.int32)
