"""What API processes and their workers tell each other, as msgpack: nothing that is read can run code."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from jaxinfer.engine.types import ModelInfo
from jaxinfer.serving.config import ServerConfig
from jaxinfer.serving.errors import ErrorKind, RequestError
from jaxinfer.serving.requests.prompts import Prompt


class WorkerSettings(msgspec.Struct):
    """What a worker is started with. text: of `TextProcessor.settings`. options: without secrets."""

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


class Encode(msgspec.Struct, tag="encode"):
    """Tokenise texts. params: what errors call each."""

    texts: list[str]
    params: list[str]
    add_special_tokens: bool


class Decode(msgspec.Struct, tag="decode"):
    """The text of token ids."""

    ids: list[int]
    skip_special_tokens: bool


Job = ReadBody | Encode | Decode


class PackedPrompt(msgspec.Struct):
    """A Prompt. ids: four bytes each."""

    ids: bytes
    param: str
    text: str | None


class Prompts(msgspec.Struct, tag="prompts"):
    """A body whose prompts are made. body: JSON of what else it says. ignored: names of fields without effect.

    tools: whether the model is offered any.
    """

    endpoint: str
    body: bytes
    ignored: list[str]
    prompts: list[PackedPrompt]
    tools: bool


class Answer(msgspec.Struct, tag="answer"):
    """A body that is answered. answer: JSON."""

    answer: bytes
    ignored: list[str]


class Ids(msgspec.Struct, tag="ids"):
    """Token ids of each text, four bytes each."""

    ids: list[bytes]


class Text(msgspec.Struct, tag="text"):
    """A text."""

    text: str


class Failure(msgspec.Struct, tag="failure"):
    """A RequestError."""

    message: str
    kind: ErrorKind
    param: str | None
    code: str | None
    retry_after: int | None

    @classmethod
    def of(cls, error: RequestError) -> "Failure":
        """Packs an error."""
        return cls(error.message, error.kind, error.param, error.code, error.retry_after)

    def error(self) -> RequestError:
        """The error."""
        return RequestError(
            self.message, kind=self.kind, param=self.param, code=self.code, retry_after=self.retry_after
        )


Reply = Prompts | Answer | Ids | Text | Failure

encode = msgspec.msgpack.Encoder().encode
decode_job = msgspec.msgpack.Decoder(Job).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids, four bytes each."""
    return np.array(ids, np.int32).tobytes()


def unpack_ids(data: bytes) -> np.ndarray:
    """The ids that were packed, int32 [n]."""
    return np.frombuffer(data, np.int32)


def pack_prompt(prompt: Prompt) -> PackedPrompt:
    """A prompt as it travels."""
    return PackedPrompt(prompt.token_ids.tobytes(), prompt.param, prompt.text)


def unpack_prompt(packed: PackedPrompt) -> Prompt:
    """The prompt that was packed."""
    return Prompt(unpack_ids(packed.ids), packed.param, packed.text)
