"""Programs compiled in processes of their own, within limits of time and memory; results are kept by what they follow
from."""

import hashlib
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

import jaxinfer_kernels
from jaxinfer_kernels.check.targets import Target, TargetError, read_target

from jaxinfer.plan.chip import Chip
from jaxinfer.plan.compiled import MARK, Compiled, ProgramName, Request, label
from jaxinfer.runner.platform.autotune_cache import write_note
from jaxinfer.runner.platform.compile_cache import user_folder
from jaxinfer.runner.platform.xla_options import ENVIRONMENT
from jaxinfer.runner.programs.key import compiler_versions, source_digest

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "targets", _PACKAGE.parent / "configs" / "targets")
"""Folders of an installed package (pyproject.toml puts the files there), and of a checkout."""
_SOURCES = ("stand_in.py", "compile_worker.py", "compiled.py")
"""Files of this package that determine the figures."""
_LOOKS = 0.5
"""Seconds between two looks at a process."""
_LONGEST_ERROR = 300
"""Bytes of its last words."""
_LAST_SECONDS = 5.0
"""Seconds in which a process that says nothing more has to end."""
_ENVIRONMENT = {"JAX_TRACEBACK_FILTERING": "off"}
"""The last line of a traceback is the reason then."""
_COMMAND = (sys.executable, "-P", "-m", "jaxinfer.plan.compile_worker")


class Bounds(NamedTuple):
    """seconds: of one program; of the first, of starting the process too. bytes: of the process."""

    seconds: float = 900.0
    bytes: int = 16 << 30


class CompileAnswer(NamedTuple):
    """Answer for one program. compiled: None if it was not compiled; `problem` says why. kept: True if it was known
    before."""

    name: ProgramName
    compiled: Compiled | None
    problem: str = ""
    kept: bool = False


def target_folder() -> Path:
    """Return the folder that describes the targets that can be compiled for."""
    return next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])


def target_of(chip: Chip) -> Target | None:
    """Return the target to compile for on a kind of chip; None if none is known."""
    with suppress(TargetError):
        return read_target(target_folder(), chip.name)
    return None


def compile_programs(
    request: Request, bounds: Bounds, told: Callable[[CompileAnswer], None] | None = None
) -> list[CompileAnswer]:
    """Each program of the request, in its order. told: hears of each as soon as it is known."""
    target = read_target(Path(request.folder), request.topology.target)
    keys = {name: _key(request, target, name) for name in request.names}
    known = ((name, _known(keys[name], name)) for name in request.names)
    answers = {name: CompileAnswer(name, found, kept=True) for name, found in known if found is not None}
    for answer in answers.values():
        _tell(told, answer)
    missing = [name for name in request.names if name not in answers]
    while missing:
        for answer in _compile(request._replace(names=tuple(missing)), target, bounds):
            answers[answer.name] = answer
            missing.remove(answer.name)
            if answer.compiled is not None:
                _keep(keys[answer.name], answer.compiled)
            _tell(told, answer)
    return [answers[name] for name in request.names]


def _tell(told: Callable[[CompileAnswer], None] | None, answer: CompileAnswer) -> None:
    if told is not None:
        told(answer)


def _compile(request: Request, target: Target, bounds: Bounds) -> Iterator[CompileAnswer]:
    """Compile programs in one process and yield their answers, the first at least; others are left out if it ends
    earlier."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=_environment(target),
            start_new_session=True,
        )
        try:
            lines = _lines(process, pickle.dumps(request))
            for name in request.names:
                answer = _answer(process, lines, name, bounds)
                if answer is None:
                    yield CompileAnswer(name, None, _last_words(process, errors))
                    return
                yield answer
                if process.returncode is not None:
                    return
        finally:
            _end(process)


def _environment(target: Target) -> dict[str, str]:
    """Return an environment in which the packages of this process are found, wherever they lie."""
    places = [str(_PACKAGE.parent), str(Path(jaxinfer_kernels.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return os.environ | target.variables() | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(None, places))}


def _lines(process: "subprocess.Popen[bytes]", job: bytes) -> "queue.Queue[bytes | None]":
    """Send a job to a process, and return a queue of the lines that it prints; None follows the last one."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.write(job)
        process.stdin.close()
    lines: queue.Queue[bytes | None] = queue.Queue()
    threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    return lines


def _read(stream: IO[bytes], lines: "queue.Queue[bytes | None]") -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(None)


def _answer(
    process: "subprocess.Popen[bytes]", lines: "queue.Queue[bytes | None]", name: ProgramName, bounds: Bounds
) -> CompileAnswer | None:
    """None where the process ended without one. One that takes too much is ended."""
    deadline = time.monotonic() + bounds.seconds
    while True:
        if time.monotonic() > deadline:
            return _ended(process, name, f"took more than {bounds.seconds:g} s")
        if _resident_bytes(process.pid) > bounds.bytes:
            return _ended(process, name, f"took more than {bounds.bytes / 2**30:g} GiB of memory")
        try:
            line = lines.get(timeout=_LOOKS)
        except queue.Empty:
            continue
        if line is None:
            return None
        if (found := _told(line, name)) is not None:
            return found


def _told(line: bytes, name: ProgramName) -> CompileAnswer | None:
    """None of a line that a compiler has written."""
    if not line.startswith(MARK.encode()):
        return None
    try:
        values = json.loads(line[len(MARK) :])
        problem = values.get("error", "")
        return CompileAnswer(name, None if problem else Compiled.of(values), problem)
    except (ValueError, TypeError, KeyError):
        return CompileAnswer(name, None, "what was told of it cannot be read")


def _ended(process: "subprocess.Popen[bytes]", name: ProgramName, problem: str) -> CompileAnswer:
    _end(process)
    return CompileAnswer(name, None, problem)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and all that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_words(process: "subprocess.Popen[bytes]", errors: IO[bytes]) -> str:
    """Why a process that says nothing more has ended."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(_LAST_SECONDS)
    _end(process)
    errors.seek(-min(errors.tell(), _LONGEST_ERROR), os.SEEK_CUR)
    lines = [line for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    status = f"the compiler ended with status {process.returncode}"
    return f"{status}: {' '.join(lines[-1:])}" if lines else status


def _resident_bytes(pid: int) -> int:
    """Return the resident bytes of a process; 0 if the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _key(request: Request, target: Target, name: ProgramName) -> str:
    """32 hexadecimal digits of all that a program's figures follow from."""
    own = [Path(__file__).with_name(name).read_bytes() for name in _SOURCES]
    known = sorted((key, value) for key, value in os.environ.items() if key in ENVIRONMENT or key.startswith("JAX_"))
    parts = (source_digest(), own, compiler_versions(), known, target, label(name))
    made_for = (request.decoder, request.dtype, request.mesh, request.topology, request.shapes)
    return hashlib.sha256(repr((*parts, *made_for)).encode()).hexdigest()[:32]


def _file(key: str) -> Path | None:
    with suppress(OSError):
        return user_folder() / "plan" / f"{key}.json"
    return None


def _known(key: str, name: ProgramName) -> Compiled | None:
    file = _file(key)
    if file is not None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = Compiled.of(json.loads(file.read_text()))
            sizes = (found.peak, found.argument, found.alias, found.output, found.temporary)
            return found if found.program == label(name) and all(isinstance(size, int) for size in sizes) else None
    return None


def _keep(key: str, compiled: Compiled) -> None:
    file = _file(key)
    if file is not None:
        with suppress(OSError):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_note(file, compiled._asdict())
