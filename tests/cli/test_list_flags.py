"""MODEL before and after flags of several values, which would take it for one of theirs."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.cli import convert, inspect, main, plan
from jaxinfer.cli.flags import parse_flags
from jaxinfer.cli.generate import GenerateOptions
from jaxinfer.cli.sampling import SamplingFlags
from jaxinfer.cli.settings import parse_settings
from jaxinfer.config import ModelConfig
from jaxinfer.errors import ParameterError
from jaxinfer.serving.config import ServerConfig

SERVE = (
    "served_model_name", "allowed_hosts", "allowed_origins", "allowed_methods", "allowed_headers", "ignore_config_keys",
)  # fmt: skip
GENERATE = ("logit_bias", "stop", "stop_token_ids", "allowed_token_ids", "bad_words", "ignore_config_keys")


def parse(command: str, *arguments: str) -> tuple[str, dict[str, Any]]:
    """The model, and all other settings by name."""
    if command == "serve":
        config, own = parse_settings("serve", {"server": ServerConfig()}, arguments)
        return config.model, {**vars(config.load), **vars(own.server)}
    if command == "generate":
        groups = {"generation": GenerateOptions(), "sampling": SamplingFlags()}
        config, own = parse_settings("generate", groups, arguments)
        return config.model, {**vars(config.load), **vars(own.sampling)}
    asked = parse_flags({"inspect": inspect._flags, "plan": plan._flags}[command], command, arguments)
    return asked.config.model, {**asked._asdict(), **vars(asked.config.load)}


@pytest.mark.parametrize(
    ("command", "name"),
    [("serve", name) for name in SERVE]
    + [("generate", name) for name in GENERATE]
    + [("inspect", "ignore_config_keys"), ("plan", "mesh")],
)
def test_the_model_before_and_after(command: str, name: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    one, two = (7, 8) if name.endswith("token_ids") else ("7", "8")
    for line in (f"{flag} 7 own/m", f"{flag} 7 demo", f"{flag} 7 /m", f"{flag}=7 /m", f"/m {flag} 7"):
        model, values = parse(command, *line.split())
        assert (model, values[name]) == ((set(line.split()) & {"own/m", "demo", "/m"}).pop(), (one,)), line
    for line in (f"/m {flag} 7 8", f"/m {flag} 7 {flag} 8", f"{flag} 7 {flag}=8 /m"):
        model, values = parse(command, *line.split())
        assert (model, values[name]) == ("/m", (one, two)), line


@pytest.mark.parametrize("name", SERVE)
@pytest.mark.parametrize("line", ["{} a b", "{} a b /some/model", "{} a /m OTHER a b", "{} a /m {} b /n", "{}"])
def test_what_may_be_a_value_or_the_model_is_refused(name: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    flag = f"--{name.replace('_', '-')}"
    other = "--allowed-hosts" if flag != "--allowed-hosts" else "--allowed-origins"
    line = line.replace("OTHER", other)
    assert main(["serve", *line.replace("{}", flag).split()]) == 2
    said = capsys.readouterr().err
    assert flag in said
    assert "put MODEL first" in said or "needs a value" in said


def test_numbers_are_no_model() -> None:
    model, values = parse("generate", "--stop-token-ids", "7", "8")
    assert (model, values["stop_token_ids"]) == ("demo", (7, 8))


def test_a_model_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = "--served-model-name", "foo", "mine"
    with pytest.raises(ParameterError, match="--served-model-name: takes all words after it, here foo mine"):
        parse("serve", *line)
    (tmp_path / "mine").mkdir()
    assert parse("serve", *line)[0] == "mine"


def test_a_word_may_be_longer_than_a_files_name() -> None:
    with pytest.raises(ParameterError, match="takes all words after it"):
        parse("serve", "--allowed-hosts", "a", "b" * 300)


def test_other_flags_between() -> None:
    line = "--port 80 --allowed-hosts h --access-log --served-model-name foo /m --no-overlap --seed -1"
    model, values = parse("serve", *line.split())
    assert (model, values["served_model_name"], values["allowed_hosts"]) == ("/m", ("foo",), ("h",))
    assert (values["port"], values["access_log"], values["seed"]) == (80, True, -1)
    assert parse("serve", "--access-log", "/m", "--allowed-hosts", "a", "b")[0] == "/m"


def test_a_file_names_the_model(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("model: /of/file\n")
    with pytest.raises(ParameterError, match="put MODEL first"):
        parse("serve", "--config", str(file), "--served-model-name", "foo", "/m")
    line = "--served-model-name", "a", "--served-model-name", "b"
    model, values = parse("serve", "--config", str(file), *line)
    assert (model, values["served_model_name"]) == ("/of/file", ("a", "b"))


def test_several_positional_arguments() -> None:
    line = "--ignore-config-keys k m out --to orbax"
    asked = parse_flags(convert._flags, "convert", line.split())
    assert (asked.config.model, str(asked.out), asked.config.load.ignore_config_keys) == ("m", "out", ("k",))


def test_a_value_that_begins_with_a_dash() -> None:
    assert parse("generate", "/m", "--stop=-end")[1]["stop"] == ("-end",)


def test_every_list_is_tried() -> None:
    serve = {field.name for kind in (ServerConfig, ModelConfig) for field in fields(kind) if "tuple" in str(field.type)}
    assert serve == set(SERVE)
    sampling = {field.name for field in fields(SamplingFlags) if "tuple" in str(field.type)}
    assert sampling | {"ignore_config_keys"} == set(GENERATE)
