"""The command line: one file a command, imported when it is called."""

import importlib
import sys
from collections.abc import Sequence

from jaxinfer.errors import JaxinferError
from jaxinfer.version import __version__

_COMMANDS = {
    "serve": "serve a model to OpenAI clients",
    "generate": "continue one prompt in the terminal",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; arguments are the process's by default. The exit status: 2 for what the user can mend."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = given[0] if given else "--help"
    if name in ("-h", "--help"):
        print(_help())
        return 0 if given else 2
    if name in ("-V", "--version"):
        print(f"jaxinfer {__version__}")
        return 0
    if name not in _COMMANDS:
        return _fail(f"there is no command {name!r}; commands are {', '.join(_COMMANDS)}")
    try:
        return importlib.import_module(f"jaxinfer.cli.{name}").run(given[1:])
    except JaxinferError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130


def _help() -> str:
    commands = "\n".join(f"  {name:10} {text}" for name, text in _COMMANDS.items())
    return f"usage: jaxinfer COMMAND [MODEL] [flags]\n\n{commands}\n\n`jaxinfer COMMAND --help` tells its flags."


def _fail(message: str) -> int:
    print(f"jaxinfer: error: {' '.join(message.split())}", file=sys.stderr)
    return 2
