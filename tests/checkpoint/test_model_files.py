"""config.json and generation_config.json of a folder."""

import json
import shutil
from pathlib import Path

import pytest

from jaxinfer.errors import ModelError
from jaxinfer.model_config.generation_config import read_generation_config
from jaxinfer.model_config.model_files import read_model_files
from tests.material import material

GOLDENS = Path(__file__).resolve().parent.parent / "goldens"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(GOLDENS / "qwen3" / "config.json", tmp_path)
    return tmp_path


def generation(folder: Path, **values) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(values))
    return folder


def test_without_generation_config(folder: Path):
    assert read_model_files(folder).eos_token_ids == (2,)
    assert read_generation_config(folder) == ({}, (), ())


def test_defaults_and_end_of_sequence_ids(folder: Path):
    values = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0, "repetition_penalty": 1.05}
    generation(folder, **values, do_sample=True, eos_token_id=[5, 2, 7])
    assert read_generation_config(folder) == (values, (), (5, 2, 7))
    assert read_model_files(folder).eos_token_ids == (2, 5, 7)


def test_do_sample_false_is_greedy(folder: Path):
    assert read_generation_config(generation(folder, do_sample=False, temperature=0.7)).sampling == {"temperature": 0}


def test_a_real_model():
    files = read_model_files(material("models", "stories260K"))
    assert files.eos_token_ids == (2, 1)
    assert files.config.layers[0].mixer.num_kv_heads == 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": "hot"}, r"generation_config\.json: temperature must be a number"),
        ({"temperature": -1}, r"generation_config\.json: temperature: -1 is out of range"),
        ({"top_k": 1.5}, r"generation_config\.json: top_k must be a number"),
        ({"eos_token_id": ["a"]}, r"generation_config\.json: eos_token_id must be a token id"),
        ({"eos_token_id": 96}, "eos_token_id 96 is not below vocab_size, 96"),
    ],
)
def test_bad_generation_config(folder: Path, values: dict, message: str):
    with pytest.raises(ModelError, match=message):
        read_model_files(generation(folder, **values))


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not valid JSON"), ("[]", "must hold a JSON object"), ("\xff", "is not UTF-8")]
)
def test_broken_json(folder: Path, text: str, message: str):
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match=rf"config\.json: {message}"):
        read_model_files(folder)


def test_no_config(tmp_path: Path):
    with pytest.raises(ModelError, match=r"config\.json: cannot be read: No such file"):
        read_model_files(tmp_path)
