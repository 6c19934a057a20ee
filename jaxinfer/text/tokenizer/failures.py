"""Failures of the tokenizers package."""

import contextlib
from collections.abc import Callable, Iterator

from jaxinfer.errors import JaxinferError

_PANIC = "PanicException"


@contextlib.contextmanager
def failures(named: Callable[[str], JaxinferError]) -> Iterator[None]:
    """Turns whatever the package raises into an error of ours: bare Exceptions, and panics, which are none.

    named: makes the error of what was raised. Our own pass.
    """
    try:
        yield
    except JaxinferError:
        raise
    except Exception as error:
        raise named(f"{type(error).__name__}: {error}"[:300]) from error
    except BaseException as error:
        # A panic of Rust is a BaseException of a class that cannot be imported.
        if type(error).__name__ != _PANIC:
            raise
        raise named(f"the tokenizers package failed: {error}"[:300]) from None
