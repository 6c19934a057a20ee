"""`jaxinfer convert`: its flags, what it refuses with which words, and the folders that other commands take."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.cli import inspect, main
from tests.cli.command_line import call
from tests.models.goldens import GOLDENS

MODEL = str(GOLDENS / "qwen2")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["OUT", "--to", "gguf"], "--to: 'gguf' is not one of orbax, safetensors"),
        (["OUT", "--to", "orbax", "--quantization", "int3"], "--quantization: 'int3' is not one of none, int8"),
        (["OUT", "--to", "orbax", "--dtype", "int8"], "--dtype: 'int8' is not one of"),
        (["OUT", "--to", "orbax", "--mesh", "tp3"], "--mesh: 'tp3' is no mesh"),
        (["OUT", "--to", "safetensors", "--mesh", "tp2"], "--mesh: is for --to orbax"),
        (["OUT/out", "--to", "orbax"], "is no folder; give one in a folder that exists"),
        (["PARENT", "--to", "orbax"], "exists; give a folder that does not"),
        ([MODEL, "--to", "orbax"], "is the model's folder"),
        ([f"{MODEL}/out", "--to", "orbax"], "or in it, or around it; give another"),
        (["OUT", "--to", "orbax", "--architecture", "Nobodys"], "Nobodys"),
        (["OUT"], "error: --to (orbax or safetensors): must be given"),
        ([], "error: OUT, --to (orbax or safetensors): must be given"),
    ],
)
def test_what_is_refused(arguments: list[str], told: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    places = {"OUT": str(tmp_path / "out"), "OUT/out": str(tmp_path / "out" / "out"), "PARENT": str(tmp_path / "there")}
    done = call("convert", MODEL, *(places.get(argument, argument) for argument in arguments))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert told in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_model_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(tmp_path), str(tmp_path.parent / "out"), "--to", "orbax"]) == 2
    assert "has no config.json" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("to", ["orbax", "safetensors"])
def test_other_commands_take_the_folder(to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The demo model, whose tokenizer, template and generation_config.json are copied."""
    out = tmp_path / "out"
    assert main(["convert", "demo", str(out), "--to", to, "--quantization", "int8"]) == 0
    assert f"jaxinfer serve {out}" in capsys.readouterr().out
    assert inspect.run([str(out), "--json"]) == 0
    sizes = json.loads(capsys.readouterr().out)["weight_bytes"]
    assert list(sizes) == (["int8"] if to == "orbax" else ["compressed-tensors' int8"])
    prompt, greedy = ["What is the capital of France?"], SamplingParams(temperature=0, max_tokens=16)

    def answer(model: str, **flags: Any) -> list[int]:
        llm = LLM(model, compile="lazy", compile_cache_dir="off", **flags)
        try:
            return list(llm.generate(prompt, greedy)[0].outputs[0].token_ids)
        finally:
            llm.close()

    found = answer(str(out))
    assert found
    if to == "orbax":
        assert found == answer("demo", quantization="int8")


def test_a_folder_that_does_not_fit_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["convert", "demo", str(out), "--to", "orbax"]) == 0
    capsys.readouterr()
    assert main(["generate", str(out), "--prompt", "Once", "--dtype", "bfloat16"]) == 2
    assert "dtype is 'float32' there and 'bfloat16' here" in capsys.readouterr().err
