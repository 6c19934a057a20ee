"""Renders chat templates in a process of its own, under limits that the kernel enforces.

Run as a script, with the standard library and jinja2 only. Reads and writes frames on standard input
and output: four bytes of length, big-endian, then JSON. The first frame is
`{"template", "memory_bytes", "cpu_seconds"}` and is answered with
`{"names": [...], "fields": [...], "literals": [...]}`, the variables that the template reads, what it may look up in
them, and its strings; each frame after it is a job
`{"variables", "now", "cpu_seconds", "max_chars"}`, answered with `{"text"}` or `{"error"}`. A job that takes too
much processor time or memory ends the process.
"""

import contextlib
import json
import math
import os
import resource
import struct
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, BinaryIO

import jinja2
import jinja2.ext
import jinja2.meta
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

OUT_OF_MEMORY = 3
"""The process's exit status where a job took too much memory."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %} … {% endgeneration %}`, which marks what the assistant wrote; here it only renders it."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 reads a class attribute)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Callable[[], str]) -> str:
        return caller()


def make_environment() -> ImmutableSandboxedEnvironment:
    """A sandbox with what chat templates expect of transformers."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _limit_memory(memory_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # macOS knows no limit of the address space
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _limit_processor_time(seconds: float) -> None:
    """Allows this process `seconds` more; the kernel ends it when they are used up."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = math.ceil(used.ru_utime + used.ru_stime + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _read_frame(stream: BinaryIO) -> Any:
    head = stream.read(4)
    return json.loads(stream.read(struct.unpack(">I", head)[0])) if len(head) == 4 else None


def _write_frame(stream: BinaryIO, value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    try:
        stream.write(struct.pack(">I", len(body)) + body)
        stream.flush()
    except BrokenPipeError:
        os._exit(0)  # who asked has gone, and there is nobody to tell


def _render(template: jinja2.Template, job: dict[str, Any]) -> dict[str, Any]:
    now = datetime.fromisoformat(job["now"])
    template.globals["strftime_now"] = now.strftime
    text = template.render(**job["variables"])
    if len(text) > job["max_chars"]:
        return {"error": f"the rendered text has {len(text)} characters; at most {job['max_chars']} are allowed"}
    return {"text": text}


def _literals(tree: nodes.Template) -> set[str]:
    return {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}


def _fields(tree: nodes.Template) -> set[str]:
    """`a.name`, and strings that could be names: `a["name"]`, `"name" in a`, `a.get("name")`."""
    names = {text for text in _literals(tree) if text.isidentifier()}
    return names | {node.attr for node in tree.find_all(nodes.Getattr)}


def _answer(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return work()
    except MemoryError:
        sys.exit(OUT_OF_MEMORY)
    except jinja2.TemplateError as error:
        own = type(error) is jinja2.TemplateError  # what the template raises itself is a sentence of its author's
        return {"error": str(error)[:500] if own else f"{type(error).__name__}: {str(error)[:500]}"}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error)[:500]}"}


def main() -> None:
    """Serves one template until standard input ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    first = _read_frame(source)
    if first is None:
        return
    _limit_memory(first["memory_bytes"])
    _limit_processor_time(first["cpu_seconds"])
    environment = make_environment()
    compiled: list[jinja2.Template] = []

    def prepare() -> dict[str, Any]:
        tree = environment.parse(first["template"])
        names, fields = jinja2.meta.find_undeclared_variables(tree), _fields(tree)
        compiled.append(environment.from_string(first["template"]))
        return {"names": sorted(names), "fields": sorted(fields), "literals": sorted(_literals(tree))}

    _write_frame(sink, _answer(prepare))
    while compiled and (job := _read_frame(source)) is not None:
        _limit_processor_time(job["cpu_seconds"])
        answer = _answer(lambda job=job: _render(compiled[0], job))
        _write_frame(sink, answer)


if __name__ == "__main__":
    main()
