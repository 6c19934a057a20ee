"""The command line: one file a command, imported when it is called."""

import importlib
import os
import signal
import sys
from collections.abc import Sequence

from jaxinfer.errors import JaxinferError, ParameterError
from jaxinfer.signals import end_at_once_on_signals, end_process
from jaxinfer.version import __version__

_COMMANDS = {
    "serve": "serve a model to OpenAI clients",
    "generate": "continue one prompt in the terminal",
    "chat": "talk to a model in the terminal",
    "engine": "run a model's engine alone, for `serve --engine-address`",
    "models": "list the architectures that can be served, and what each was checked against",
    "inspect": "show what a model is made of, and what it takes of this machine",
    "plan": "what a model takes of meshes that need not be here, and how fast they could be",
    "compile": "compile a model's programs for servers to start from",
    "convert": "write a model in another form, as engines hold it or for others to read",
    "env": "show versions, devices, memory and what can run here",
}

_BROKEN_PIPE = 141
"""The status that a shell gives to SIGPIPE."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. The exit status: 2 for what the user can mend.

    Without arguments they are the process's, which ends with the command, and at once on SIGINT and SIGTERM.
    """
    if arguments is not None:
        return _run(list(arguments))
    end_at_once_on_signals()
    return end_process(_run(sys.argv[1:]))


def _run(given: list[str]) -> int:
    try:
        return _command(given)
    except ParameterError as error:
        return _fail(f"{_as_written(error.param, given)}: {error.message}")
    except JaxinferError as error:
        return _fail(str(error))
    except KeyboardInterrupt:  # while a command that had handlers of its own tears down
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read has left, as in `| head`; what is left must not be flushed to nobody.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except SystemExit as end:  # of `--help`: what it printed is flushed as everything else is
        if end.code:
            raise
        return 0


def _command(given: list[str]) -> int:
    name = given[0] if given else "--help"
    if name in ("-h", "--help"):
        print(_help())
        return 0 if given else 2
    if name in ("-V", "--version"):
        print(f"jaxinfer {__version__}")
        return 0
    if name not in _COMMANDS:
        return _fail(f"there is no command {name!r}; commands are {', '.join(_COMMANDS)}")
    return importlib.import_module(f"jaxinfer.cli.{name}").run(given[1:])


def _as_written(param: str, given: list[str]) -> str:
    """The setting's flag where it was given by one, else its name."""
    flag = f"--{param.replace('_', '-')}"
    written = {argument.partition("=")[0].replace("_", "-") for argument in given}
    return flag if flag in written or flag.replace("--", "--no-", 1) in written else param


def _help() -> str:
    commands = "\n".join(f"  {name:10} {text}" for name, text in _COMMANDS.items())
    return (
        f"usage: jaxinfer COMMAND [MODEL] [flags]\n\n{commands}\n\n"
        "MODEL is a folder, a hub id `owner/name`, or by default `demo`, the model in the package.\n"
        "`jaxinfer COMMAND --help` tells a command's flags."
    )


def _fail(message: str) -> int:
    print(f"jaxinfer: error: {' '.join(message.split())}", file=sys.stderr)
    return 2
