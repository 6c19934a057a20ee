"""Model folders that somebody else has made: what is wrong is an error that names the file."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.checkpoint.safetensors import Checkpoint
from jaxinfer.errors import ModelError, ParameterError
from jaxinfer.model_config.model_files import read_model_files
from jaxinfer.rpc.tokenizer_zip import tokenizer_zip
from jaxinfer.text import TextProcessor, Tokenizer
from tests.material import REPOSITORY
from tests.text.folders import CHAT_TEMPLATE, byte_level_folder, panicking

GOLDEN = REPOSITORY / "tests" / "goldens" / "qwen3"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = byte_level_folder(tmp_path / "model", chat_template=None)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(GOLDEN / name, made)
    (made / "generation_config.json").write_text("{}")
    (made / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    (made / "special_tokens_map.json").write_text("{}")
    return made


def read_all(folder: Path) -> None:
    """Everything that the processes of a server read of a folder."""
    read_model_files(folder)
    text = TextProcessor.from_folder(folder)
    try:
        text.chat_template.check()
    finally:
        text.close()
    with Checkpoint(folder) as checkpoint:
        assert checkpoint.names


def test_a_folder_that_is_right_is_read(folder: Path) -> None:
    read_all(folder)


FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]
ALL = [*FILES, "chat_template.jinja", "model.safetensors"]


def as_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def as_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def as_dangling(file: Path) -> None:
    file.unlink()
    file.symlink_to("nowhere")


def as_loop(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.name)


def moved_out(file: Path) -> None:
    outside = file.parent.parent / "outside"
    outside.mkdir()
    file.rename(outside / file.name)
    file.symlink_to(outside / file.name)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("change", [as_fifo, as_folder, as_dangling, as_loop, moved_out])
def test_what_is_no_file_of_the_folder_is_named(folder: Path, name: str, change: Callable[[Path], None]) -> None:
    change(folder / name)
    with pytest.raises(ModelError, match=name):
        read_all(folder)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b'"a"',
        b"\xff\xfe{}",
        b'{"a": "\xe9"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"{}\0",
        b"1" * 9999,
    ],
    ids=["empty", "half", "list", "text", "utf16", "latin1", "nested", "nested_objects", "nul", "digits"],
)
def test_what_is_no_json_object_is_named(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(ModelError, match=name):
        read_all(folder)


@pytest.mark.parametrize("content", [b"\xff", CHAT_TEMPLATE.encode("utf-16"), b"{{ '\xe9' }}"])
def test_a_template_that_is_not_utf8_is_named(folder: Path, content: bytes) -> None:
    (folder / "chat_template.jinja").write_bytes(content)
    with pytest.raises(ModelError, match=r"chat_template\.jinja: is not UTF-8: byte \d+"):
        read_all(folder)


@pytest.mark.parametrize("content", ["{{ " + "(" * 5000 + ")" * 5000 + " }}", "{% if a %}" * 5000, "x" * (5 * 2**20)])
def test_a_template_that_is_too_much_is_refused(folder: Path, content: str) -> None:
    (folder / "chat_template.jinja").write_text(content)
    with pytest.raises(ModelError, match="template"):
        read_all(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 10**6), ("num_hidden_layers", 10**12), ("num_hidden_layers", 1e300),
        ("vocab_size", 10**12), ("vocab_size", 10**400), ("hidden_size", 10**9), ("intermediate_size", 10**12),
        ("num_attention_heads", 10**9), ("num_key_value_heads", 10**9), ("head_dim", 10**9),
        ("max_position_embeddings", 10**12), ("sliding_window", 10**12), ("eos_token_id", 10**12),
        ("bos_token_id", [1, 10**12]), ("rope_theta", float("inf")), ("rms_norm_eps", 10**400),
        ("rope_scaling", {"rope_type": "linear", "factor": 1e300}),
        ("rope_scaling", {"rope_type": "yarn", "factor": float("inf"), "original_max_position_embeddings": 64}),
        ("rope_scaling", {"rope_type": "yarn", "factor": 1e12, "original_max_position_embeddings": 64}),
    ],
)  # fmt: skip
def test_absurd_sizes_are_refused_before_anything_is_made(folder: Path, field: str, value: Any) -> None:
    fields = json.loads((GOLDEN.parent / "llama2" / "config.json").read_text())
    if field == "rope_scaling":
        fields.pop("rope_parameters", None)
    (folder / "config.json").write_text(json.dumps({**fields, field: value}))
    with pytest.raises(ModelError, match=r"config\.json: "):
        read_model_files(folder)


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        ("gpt2", "n_layer", 10**9), ("gpt2", "n_positions", 10**12), ("glm4_moe", "num_mtp_layers", 10**9),
        ("glm4_moe", "n_shared_experts", 10**18), ("qwen2_moe", "moe_intermediate_size", 10**18),
        ("qwen2_moe", "num_experts_per_tok", -(10**4000)), ("cohere2", "sliding_window_pattern", -(10**4000)),
        ("granite", "residual_multiplier", float("nan")), ("cohere", "logit_scale", float("inf")),
    ],
)  # fmt: skip
def test_absurd_values_of_families_are_refused(folder: Path, family: str, field: str, value: Any) -> None:
    fields = json.loads((GOLDEN.parent / family / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, field: value}))
    with pytest.raises(ModelError, match=r"config\.json: ") as error:
        read_model_files(folder)
    assert len(str(error.value)) < 1000


LONG = "A" * 100_000


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("config.json", {"architectures": [LONG]}), ("config.json", {"architectures": LONG}),
        ("config.json", {"architectures": ["A"] * 100_000}),
        ("config.json", {"architectures": None, "model_type": LONG}), ("config.json", {f"{LONG}_scale": 2}),
        ("config.json", {"architectures": None, "model_type": [LONG]}),
        ("config.json", {"num_hidden_layers": LONG}), ("config.json", {"num_hidden_layers": -(10**4000)}),
        ("config.json", {"num_hidden_layers": 10**4000}), ("config.json", {"hidden_act": LONG}),
        ("config.json", {"tie_word_embeddings": LONG}), ("config.json", {"eos_token_id": [LONG]}),
        ("config.json", {"eos_token_id": 10**4000}), ("config.json", {"rope_scaling": LONG}),
        ("config.json", {"rope_parameters": {"rope_type": LONG}}),
        ("config.json", {"rope_parameters": {f"{LONG}_scale": 2}}),
        ("config.json", {"rope_parameters": {"rope_type": "linear", "type": LONG}}),
        ("config.json", {"quantization_config": {LONG: LONG}}), ("generation_config.json", {"temperature": LONG}),
        ("generation_config.json", {"top_k": 10**4000}), ("generation_config.json", {"eos_token_id": LONG}),
        ("generation_config.json", {"max_new_tokens": -(10**4000)}),
        ("tokenizer_config.json", {"added_tokens_decoder": {LONG: {"content": "a"}}}),
        ("tokenizer_config.json", {"chat_template": "{% " + LONG + " %}"}),
        ("tokenizer.json", {"model": {"type": LONG}}),
    ],
)  # fmt: skip
def test_errors_quote_little_of_a_file(folder: Path, name: str, fields: dict[str, Any]) -> None:
    if name == "tokenizer_config.json":
        (folder / "chat_template.jinja").unlink()
    content = {**json.loads((folder / name).read_text()), **fields}
    (folder / name).write_text(json.dumps(content))
    with pytest.raises(ModelError) as raised:
        read_all(folder)
    assert len(str(raised.value)) < len(str(folder)) + 500


def test_a_message_that_is_too_long_keeps_its_ends() -> None:
    error = ModelError("config.json: " + LONG + "; allowed are a and b")
    assert str(error).startswith("config.json: AAA")
    assert str(error).endswith("AAA; allowed are a and b")
    assert len(str(error)) <= 1000


@pytest.mark.parametrize(
    "value",
    [
        [], {"x": {"content": "a"}}, {"5": {}}, {"5": "a"}, {"5": {"content": ["a"]}}, {"1" * 5000: {"content": "a"}},
        "text", 5,
    ],
)  # fmt: skip
def test_tokens_of_a_wrong_form_are_named_or_harmless(folder: Path, value: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": value}))
    if value in ([], {"5": {"content": ["a"]}}):
        read_all(folder)
        return
    with pytest.raises(ModelError, match=r"tokenizer_config\.json"):
        read_all(folder)


def test_a_generation_config_of_wrong_values_is_named(folder: Path) -> None:
    for content in ({"temperature": [1]}, {"top_k": 10**400}, {"eos_token_id": 10**12}, {"max_new_tokens": "many"}):
        (folder / "generation_config.json").write_text(json.dumps(content))
        with pytest.raises(ModelError, match=r"generation_config\.json"):
            read_all(folder)


def snapshot_of(folder: Path) -> Path:
    """A folder's files as the hub's cache holds them; names are as long as those of git and of SHA-256."""
    repository = folder.parent / "models--owner--name"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / "0123abcd"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for i, file in enumerate(sorted(folder.iterdir())):
        name = f"{i:064x}" if file.suffix == ".safetensors" else f"{i:040x}"
        shutil.copy(file, blobs / name)
        (snapshot / file.name).symlink_to(Path("..") / ".." / "blobs" / name)
    return snapshot


def test_links_of_the_hubs_cache_are_followed(folder: Path) -> None:
    """`snapshots/REVISION` holds links into `blobs`, of the same repository and of no other."""
    snapshot = snapshot_of(folder)
    blobs = snapshot.parent.parent / "blobs"
    read_all(snapshot)
    linked = folder.parent / "linked"
    linked.symlink_to(snapshot)
    read_all(linked)
    other = folder.parent / "models--owner--other" / "blobs"
    shutil.copytree(blobs, other)
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(other / f"{0:040x}")
    with pytest.raises(ModelError, match=r"config\.json: is a symbolic link out of the folder"):
        read_all(snapshot)


def moved_blobs(snapshot: Path) -> Path:
    """Where `blobs` is on another disk, and a link in the cache."""
    blobs, elsewhere = snapshot.parent.parent / "blobs", snapshot.parents[2] / "elsewhere"
    blobs.rename(elsewhere)
    blobs.symlink_to(elsewhere)
    return elsewhere


def test_blobs_may_be_on_another_disk(folder: Path) -> None:
    snapshot = snapshot_of(folder)
    moved_blobs(snapshot)
    read_all(snapshot)


@pytest.mark.parametrize("target", ["id_rsa", "below/" + "0" * 40, "../other/" + "0" * 40, "linked" + "0" * 34])
def test_a_link_to_blobs_opens_nothing_else(folder: Path, target: str) -> None:
    """An archive may bring `blobs -> /home/user/.ssh`, and who unpacks it owns the link."""
    snapshot = snapshot_of(folder)
    elsewhere = moved_blobs(snapshot)
    secret = elsewhere / target
    secret.parent.mkdir(exist_ok=True)
    secret.write_text("{}")
    (snapshot / "generation_config.json").unlink()
    (snapshot / "generation_config.json").symlink_to(snapshot.parent.parent / "blobs" / target)
    with pytest.raises(ModelError, match=r"generation_config\.json: is a symbolic link out of the folder, to .*/"):
        read_all(snapshot)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to give files to others")
def test_a_link_to_blobs_of_another_user_is_not_followed(folder: Path) -> None:
    snapshot = snapshot_of(folder)
    moved_blobs(snapshot)
    os.chown(snapshot.parent.parent / "blobs", 4321, 4321, follow_symlinks=False)
    with pytest.raises(ModelError, match="is a symbolic link out of the folder"):
        read_all(snapshot)


def test_links_inside_the_folder_are_followed(folder: Path) -> None:
    (folder / "config.json").rename(folder / "config.real.json")
    (folder / "config.json").symlink_to("config.real.json")
    read_all(folder)


def test_what_lies_outside_is_not_handed_out(folder: Path) -> None:
    moved_out(folder / "special_tokens_map.json")
    with pytest.raises(ModelError, match="special_tokens_map"):
        tokenizer_zip(folder, {})


@pytest.mark.parametrize("parse_special", [True, False])
def test_a_panic_of_the_tokenizers_package_is_a_wrong_text(folder: Path, parse_special: bool) -> None:
    tokenizer = Tokenizer(panicking(folder))
    assert tokenizer.encode("x", parse_special=parse_special)
    with pytest.raises(ParameterError, match="cannot be tokenised") as raised:
        tokenizer.encode("x" * 60, param="prompt", parse_special=parse_special)
    assert raised.value.param == "prompt"
    assert tokenizer.encode("xy", parse_special=parse_special)


@pytest.mark.parametrize("parse_special", [True, False])
@pytest.mark.parametrize(("params", "named"), [(["prompt", "suffix"], "suffix"), (None, "prompt[1]")])
def test_of_several_texts_the_one_that_panics_is_named(
    folder: Path, parse_special: bool, params: list[str] | None, named: str
) -> None:
    tokenizer = Tokenizer(panicking(folder))
    with pytest.raises(ParameterError, match="cannot be tokenised") as raised:
        tokenizer.encode_batch(["x", "x" * 60], params=params, parse_special=parse_special)
    assert raised.value.param == named


@pytest.mark.long
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja"])
def test_the_commands_end_with_status_2_and_no_traceback(folder: Path, name: str) -> None:
    if name == "config.json":
        as_fifo(folder / name)
    else:
        (folder / name).write_bytes(b"[" * 100_000 + b"\xff")
    command = [sys.executable, "-m", "jaxinfer", "serve", str(folder), "--port", "0", "--compile-cache-dir", "off"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=REPOSITORY, check=False)
    assert done.returncode == 2, done.stderr
    assert name in done.stderr
    assert "Traceback" not in done.stderr
