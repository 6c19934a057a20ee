"""What is written beside a figure: enough to measure it again, and nothing of the machine's own folders."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks import report

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        ("/somewhere/of/mine/model", "model"),
        ("/somewhere/of/mine/folder/", "folder"),
        ("--work=/somewhere/of/mine", "--work=mine"),
        ("/somewhere/of/mine/a=b", "a=b"),
        (str(REPOSITORY / "benchmarks" / "results" / "x.json"), "benchmarks/results/x.json"),
        (f"--json={REPOSITORY}/x.json", "--json=x.json"),
        ("results/x.json", "results/x.json"),
        ("--cases", "--cases"),
        ("one stream,8 at once", "one stream,8 at once"),
        ("1/2", "1/2"),
    ],
)
def test_paths_do_not_tell_of_the_machine(argument: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(REPOSITORY / "benchmarks" / "cpu_peers.py"), argument])
    assert shlex.split(report.own_command()) == ["python", "benchmarks/cpu_peers.py", shown]


def test_xla_flags_do_not_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/somewhere/of/mine --xla_gpu_enable_command_buffer=")
    assert report.provenance()["xla_flags"] == "--xla_dump_to=mine --xla_gpu_enable_command_buffer="


def test_a_folder_without_git_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    monkeypatch.setattr(report, "__file__", str(folder / "report.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert report.provenance()["commit"] == "unknown"


def test_committed_results_tell_of_none() -> None:
    texts = [file.read_text() for file in (REPOSITORY / "benchmarks" / "results").rglob("*.json")]
    assert texts
    assert [path for text in texts for path in re.findall(r"[\s\"'=:,](/\w[\w.-]*/?)", text)] == []
