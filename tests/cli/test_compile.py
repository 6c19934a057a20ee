"""`jaxinfer compile` writes programs that another user loads from another path, and traces none."""

import re
import shutil
from pathlib import Path

import pytest

from jaxinfer.cli import main
from tests.cli.command_line import call

SIZES = ["--max-num-seqs", "1", "--max-num-batched-tokens", "8", "--max-model-len", "32", "--num-blocks", "40"]


def places(folder: Path, key: Path) -> list[str]:
    return ["--compile-cache-dir", str(folder), "--compile-cache-key", str(key)]


@pytest.mark.long
def test_a_server_starts_from_another_path_and_traces_nothing(tmp_path: Path) -> None:
    """As another user, too, if root owns the folder (tests/runner/test_compile_cache.py)."""
    made, image, key = tmp_path / "made", tmp_path / "image", tmp_path / "key"
    done = call("compile", "demo", *SIZES, *places(made, key))
    assert done.returncode == 0, done.stderr
    found = re.match(r"(\d+) programs are in ", done.stdout)
    assert found is not None, done.stdout
    assert (
        f"jaxinfer serve demo {' '.join(SIZES)} --compile-cache-dir {made} --compile-cache-key {key}\n" in done.stdout
    )
    shutil.copytree(made, image)
    for path in image.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = {file: file.stat().st_mtime_ns for file in image.rglob("*") if file.is_file()}
    flags = [*SIZES, "--compile", "all", *places(image, key), "--max-tokens", "1", "--prompt", "a"]
    started = call("generate", "demo", *flags, XDG_CACHE_HOME=str(tmp_path / "home"))
    assert started.returncode == 0, started.stderr
    assert f"{found[1]} of {found[1]} programs came from the cache\n" in started.stderr
    assert {file: file.stat().st_mtime_ns for file in before} == before


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], "--compile-cache-dir DIR is missing: the folder to write"),
        (["--compile-cache-dir", "off"], "--compile-cache-dir DIR is missing: the folder to write"),
        (["--compile-cache-dir", "{folder}"], "--compile-cache-key FILE is missing: it signs the programs"),
        (["--compile", "first"], "--compile: first leaves programs out; leave the flag out"),
        (["--compile-cache-dir", "{folder}", "--compile-cache-key", "{folder}/no/key"], "No such file or directory"),
    ],
)
def test_what_is_missing_is_named(
    flags: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", "demo", *(flag.format(folder=tmp_path) for flag in flags)]) == 2
    assert told in capsys.readouterr().err
