"""One tree of settings from YAML and flags."""

from pathlib import Path

import pytest

from jaxinfer.cli.settings import parse_settings
from jaxinfer.errors import ParameterError
from jaxinfer.serving.config import ServerConfig


def write(tmp_path: Path, text: str) -> str:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    return str(file)


def parse(*arguments: str):
    return parse_settings("serve", {"server": ServerConfig()}, arguments)


def test_defaults_without_anything() -> None:
    config, settings = parse()
    assert (config.model, config.scheduler.max_num_seqs, settings.server.port) == ("demo", "auto", 8000)


@pytest.mark.smoke
def test_flags_come_before_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "model: some/model\nmax_num_seqs: 8\nscheduler: {overlap: false}\nport: 9000\n")
    config, settings = parse("--config", file, "--max-num-seqs", "4", "--no-enable-prefix-caching")
    assert config.model == "some/model"
    assert (config.scheduler.max_num_seqs, config.scheduler.overlap) == (4, False)
    assert not config.cache.enable_prefix_caching
    assert settings.server.port == 9000
    assert parse(f"--config={file}", "other")[0].model == "other"


def test_the_file_takes_the_names_of_flags(tmp_path: Path) -> None:
    file = write(tmp_path, "max-num-seqs: 8\nno_such: 1\n")
    with pytest.raises(ParameterError, match="no_such: is no setting"):
        parse("--config", file)
    assert parse("--config", write(tmp_path, "max-num-seqs: 8\n"))[0].scheduler.max_num_seqs == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_num_seqs: eight", "max_num_seqs: 'eight' is neither a number nor auto"),
        ("cache: {block_size: 3}", "block_size: 3 must be a power of two"),
        ("cache: {page_size: 4}", "page_size: is no setting"),
        ("server: {port: 70000}", "port: 70000 is out of range"),
        ("config: other.yaml", "config: is a flag and no setting"),
        ("- a", "must hold a mapping"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        parse("--config", write(tmp_path, text))


@pytest.mark.parametrize("text", ["max_num_seqs: eight", "cache: {block_size: 3}", "no_such: 1"])
def test_the_file_with_a_wrong_value_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(ParameterError, match=r"\(in .*settings\.yaml\)$"):
        parse("--config", write(tmp_path, text))


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert parse("--config", write(tmp_path, ""))[0] == parse()[0]


@pytest.mark.parametrize(("given", "name"), [("some/model/", "some/model"), ("./model//", "./model"), ("/", "/")])
def test_a_folders_last_slash_is_not_its_name(given: str, name: str) -> None:
    assert parse(given)[0].model == name
