"""The process that renders: how it ends."""

import json
import struct
import subprocess
import sys

from jaxinfer.text.template import template_worker

FIRST = json.dumps({"template": "{{ messages }}", "memory_bytes": 2**30, "cpu_seconds": 5}).encode()


def test_it_ends_without_a_word_where_nobody_reads_its_answer() -> None:
    """As where the server was ended in the midst of its start."""
    process = subprocess.Popen(
        [sys.executable, "-P", template_worker.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    process.stdin.write(struct.pack(">I", len(FIRST)) + FIRST)
    process.stdin.close()
    with process.stderr as said:
        assert said.read() == b""
    assert process.wait(20) == 0
