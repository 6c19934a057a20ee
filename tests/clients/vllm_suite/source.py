"""vLLM's tests, from the source distribution that the package index has."""

import hashlib
import io
import os
import re
import tarfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

VERSION = "0.33.0"
SHA256 = "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112"
NAME = f"vllm-{VERSION}.tar.gz"
# Only tests of the server. Not `tests/conftest.py` and `tests/utils.py`: they import all of vLLM, and have stand-ins.
WANTED = re.compile(r"tests/(__init__\.py|entrypoints/(__init__|conftest)\.py|entrypoints/(openai|serve)/.*\.py)")


def fetch_tests(folder: Path) -> Path:
    """The folder that holds `tests/`, filled from the package index unless it is there already.

    $PIP_INDEX_URL names the index, as it does for pip. ValueError where the file is not the one we know.
    """
    target = folder / f"vllm-{VERSION}"
    if not target.exists():
        unfinished = folder / f"vllm-{VERSION}.unfinished"
        for path, text in _wanted(_archive()):
            (unfinished / path).parent.mkdir(parents=True, exist_ok=True)
            (unfinished / path).write_bytes(text)
        unfinished.rename(target)
    return target


def _archive() -> bytes:
    address, _, digest = _link().partition("#sha256=")
    with urllib.request.urlopen(address) as response:
        archive = response.read()
    found = hashlib.sha256(archive).hexdigest()
    if not digest == found == SHA256:
        raise ValueError(f"{NAME}: sha256 of the file {found}, of the index {digest}, known {SHA256}")
    return archive


def _link() -> str:
    """The address that the index gives for the file, with the digest as its fragment."""
    index = _index().rstrip("/") + "/vllm/"
    with urllib.request.urlopen(index) as response:
        page, base = response.read().decode(), response.url
    link = re.search(rf'href="([^"]*/{re.escape(NAME)}#sha256=[0-9a-f]+)"', page)
    if link is None:
        raise ValueError(f"{index}: no link to {NAME} with its sha256")
    return urllib.parse.urljoin(base, link[1])


def _index() -> str:
    """Where pip would look."""
    given = os.environ.get("PIP_INDEX_URL")
    if given:
        return given
    try:
        from pip._internal.models.index import PyPI
    except ImportError:
        raise ValueError("this Python has no pip that knows an index: set PIP_INDEX_URL") from None
    return PyPI.simple_url


def _wanted(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Path below the distribution's folder, and content."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as members:
        for member in members:
            path = member.name.partition("/")[2]
            if member.isfile() and WANTED.fullmatch(path) and ".." not in path.split("/"):
                content = members.extractfile(member)
                assert content is not None
                yield path, content.read()
