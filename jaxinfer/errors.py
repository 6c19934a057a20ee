"""Errors that reach a user. Each says which field is wrong and what is allowed."""

import reprlib
from typing import Any

_MAX_VALUE = 160
_MAX_MESSAGE = 1000


class JaxinferError(Exception):
    """Base of every error that this package raises on purpose."""


class ParameterError(JaxinferError, ValueError):
    """A request parameter or a configuration field has a value that is not allowed.

    `param` is the field's name as the user wrote it (`max_tokens`, `messages[0].role`).
    """

    def __init__(self, param: str, message: str):
        super().__init__(f"{param}: {message}")
        self.param = param
        self.message = message


class PromptTooLongError(ParameterError):
    """A prompt has more than `most` tokens, which leaves no room in the model's context for an answer."""

    def __init__(self, param: str, most: int):
        # NOTE: agents shorten their history where they find one of these phrases, which litellm and langchain look for.
        message = (
            f"the prompt is too long: it has more than {most} tokens, and this model's maximum context length is "
            f"{most + 1} tokens, one of them for an answer"
        )
        super().__init__(param, message)


class ModelError(JaxinferError, ValueError):
    """A model folder cannot be served: a file, a tensor or a `config.json` field is wrong.

    Somebody else has made the folder: values from its files are put into a message by `quoted` and `shortened`, and
    what is too long nevertheless, as texts of other packages may be, loses its middle.
    """

    def __init__(self, message: str):
        super().__init__(shortened(message, _MAX_MESSAGE))


class UnknownArchitectureError(ModelError):
    """config.json names an architecture that nothing here knows; `name` is it."""

    def __init__(self, message: str, name: str):
        super().__init__(message)
        self.name = name


class QueueFullError(JaxinferError):
    """The waiting queue is at its bound, or at a tenant's. `retry_after` is in seconds."""

    def __init__(self, waiting: int, retry_after: int = 1):
        super().__init__(f"{waiting} requests are waiting already; try again in {retry_after} s")
        self.waiting = waiting
        self.retry_after = retry_after


class WorkerLostError(JaxinferError):
    """A process that helps to read requests stalled or died; the next request gets another. The request may be fine."""


class EngineDeadError(JaxinferError):
    """The engine has stopped: no request can be served until it is started again."""


class _Repr(reprlib.Repr):
    """Looks at no more of a value than it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxdict = 20
        self.maxlong = 40
        self.maxstring = self.maxother = _MAX_VALUE


_repr = _Repr().repr


def quoted(value: Any) -> str:
    """`repr` of a value from a file, whatever its size, in at most 160 characters."""
    return shortened(_repr(value))


def shortened(text: str, most: int = _MAX_VALUE) -> str:
    """A text of at most `most` characters; a longer one loses its middle."""
    if len(text) <= most:
        return text
    half = (most - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"
