"""`python -m tests.cli.forked FILE...`: runs the command of each file, a list of arguments in JSON, and writes beside
it its exit status and what it printed. Each is a process of its own, a fork of one that has imported the commands."""

import json
import os
import sys
from pathlib import Path
from typing import NoReturn

import jaxinfer.cli.engine
import jaxinfer.cli.env
import jaxinfer.cli.generate
import jaxinfer.cli.inspect
import jaxinfer.cli.serve  # noqa: F401
from jaxinfer.cli import main


def run(file: Path) -> None:
    """Writes FILE.status, FILE.out and FILE.err."""
    child = os.fork()
    if not child:
        become(json.loads(file.read_text()), file)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    file.with_suffix(".status").write_text(str(status))


def become(arguments: list[str], file: Path) -> NoReturn:
    """Ends with the command, as `python -m jaxinfer` does."""
    for number, name in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(file.with_suffix(name), os.O_WRONLY | os.O_CREAT), number)
    sys.argv = ["jaxinfer", *arguments]
    sys.exit(main())


if __name__ == "__main__":
    for name in sys.argv[1:]:
        run(Path(name))
