"""Errors that reach a user. Each says which field is wrong and what is allowed."""


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


class ModelError(JaxinferError, ValueError):
    """A model folder cannot be served: a file, a tensor or a `config.json` field is wrong."""


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
