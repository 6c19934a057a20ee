"""Conversions that are killed: no folder that loads is left, and the next run makes what an undisturbed one makes."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxinfer.build import model_folder
from jaxinfer.checkpoint.leaves import KEY
from jaxinfer.checkpoint.safetensors import SINGLE
from jaxinfer.config import EngineConfig
from jaxinfer.convert import conversion
from jaxinfer.convert.conversion import Conversion, Form, convert
from jaxinfer.convert.work_folder import WorkFolder
from jaxinfer.errors import JaxinferError, ModelError, ParameterError
from jaxinfer.folder_files import UNFINISHED
from jaxinfer.models.declared import read_declared
from tests.convert import convert_by_parts
from tests.convert.conversions import assert_equal_leaves, converted, family, loaded
from tests.models.goldens import GOLDENS


def model_of_many_parts(folder: Path) -> Path:
    """Ten layers of some MiB each."""
    folder.mkdir()
    hidden, ff, layers, vocab = 256, 1024, 10, 512
    config = {
        "architectures": ["LlamaForCausalLM"],
        **{"hidden_size": hidden, "intermediate_size": ff, "num_hidden_layers": layers, "num_attention_heads": 4},
        **{"num_key_value_heads": 2, "vocab_size": vocab, "max_position_embeddings": 64, "rms_norm_eps": 1e-5},
    }
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens": (vocab, hidden), "model.norm": (hidden,), "lm_head": (vocab, hidden)}
    for layer in range(layers):
        own = {
            **{"self_attn.q_proj": (hidden, hidden), "self_attn.o_proj": (hidden, hidden)},
            **{"self_attn.k_proj": (hidden // 2, hidden), "self_attn.v_proj": (hidden // 2, hidden)},
            **{"mlp.gate_proj": (ff, hidden), "mlp.up_proj": (ff, hidden), "mlp.down_proj": (hidden, ff)},
            **{"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)},
        }
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in own.items()}
    rng = np.random.default_rng(0)
    save_file(
        {f"{name}.weight": rng.standard_normal(shape).astype("f4") for name, shape in shapes.items()}, folder / SINGLE
    )
    return folder


def run(source: Path, out: Path, to: str) -> subprocess.Popen[str]:
    """A conversion in a process of its own, which writes a line as each part begins."""
    command = [sys.executable, "-m", convert_by_parts.__name__, str(source), str(out), to]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def kill_within(process: subprocess.Popen[str], part: int, seconds: float) -> bool:
    """Kills a run so long after a part began, and says whether it was still running."""
    assert process.stdout is not None
    for _ in range(part):
        assert process.stdout.readline() == "part\n"
    time.sleep(seconds)
    process.kill()
    return process.wait() == -signal.SIGKILL


def contents(folder: Path) -> dict[str, bytes]:
    """Of all files but one of orbax's, which has the time in it."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != "_CHECKPOINT_METADATA"]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def loads(folder: Path) -> bool:
    try:
        loaded(model_folder(EngineConfig(str(folder))))
    except JaxinferError:
        return False
    return True


@pytest.mark.long
@pytest.mark.parametrize("to", ["orbax", "safetensors"])
def test_killed_at_ten_moments(to: str, tmp_path: Path) -> None:
    """Each run goes on after the one before was killed; the last one is left alone."""
    source, rng = model_of_many_parts(tmp_path / "source"), np.random.default_rng(3)
    parts = run(source, tmp_path / "whole", to).communicate()[0].count("part\n")
    assert parts >= 9
    killed = 0
    for folder in range(4):
        out = tmp_path / f"out-{folder}"
        for _ in range(3):
            killed += kill_within(run(source, out, to), int(rng.integers(1, parts // 3 + 1)), rng.uniform(0, 0.02))
            assert not loads(tmp_path / f"{out.name}.partial")
            assert not loads(out)
        assert run(source, out, to).wait() == 0
        assert contents(out) == contents(tmp_path / "whole")
        assert loads(out)
        assert not (tmp_path / f"{out.name}.partial").exists()
    assert killed >= 10


class Killed(BaseException):
    """Stands for a kill: nothing tidies up after it."""


def killed_at(number: int, source: Path, out: Path, to: Form = "orbax") -> None:
    """A run that ends when it has made so many parts."""
    added, add = [], WorkFolder.add

    def counted(self: WorkFolder, name, write) -> None:
        if len(added) == number:
            raise Killed
        add(self, name, write)
        added.append(name)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(WorkFolder, "add", counted)
        with pytest.raises(Killed):
            converted(source, out, to)


@pytest.mark.parametrize("to", ["orbax", "safetensors"])
def test_a_run_goes_on_where_another_stopped(to: Form, tmp_path: Path) -> None:
    out, work = tmp_path / "out", tmp_path / "out.partial"
    killed_at(2 if to == "orbax" else 1, GOLDENS / "qwen2", out, to)
    first = next(file for file in work.rglob("*") if file.is_file() and UNFINISHED not in file.name)
    before = first.stat().st_mtime_ns
    (work / "leaves").mkdir(exist_ok=True)
    (work / "leaves" / "blocks.1.orbax-checkpoint-tmp").mkdir()
    with (work / UNFINISHED).open("a") as journal:
        journal.write('["leaves/bl')  # a line that was being written
    assert not out.exists()
    converted(GOLDENS / "qwen2", out, to)
    assert (out / first.relative_to(work)).stat().st_mtime_ns == before
    assert not list(out.rglob("*-tmp"))
    assert_equal_leaves(loaded(out), loaded(GOLDENS / "qwen2"))


def test_a_part_that_has_changed_is_made_anew(tmp_path: Path) -> None:
    out, work = tmp_path / "out", tmp_path / "out.partial"
    killed_at(2, GOLDENS / "qwen2", out)
    chunk = next(file for file in work.rglob("0.0*") if file.is_file())
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"x")
    converted(GOLDENS / "qwen2", out, "orbax")
    assert_equal_leaves(loaded(out), loaded(GOLDENS / "qwen2"))


@pytest.mark.parametrize("call", ["rename", "unlink"])
def test_killed_at_the_end(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Just before the folder has its name, and just before it may be loaded."""
    out = tmp_path / "out"

    def killed(*arguments: object) -> None:
        raise Killed

    rename, unlink = os.rename, Path.unlink

    def unlink_others(path: Path, **options: bool) -> None:
        return killed() if path.name == UNFINISHED else unlink(path, **options)

    with monkeypatch.context() as patched:
        if call == "rename":
            patched.setattr(os, "rename", lambda a, b: killed() if b == out else rename(a, b))
        else:
            patched.setattr(Path, "unlink", unlink_others)
        with pytest.raises(Killed):
            converted(GOLDENS / "qwen2", out, "orbax")
    for folder in (out, tmp_path / "out.partial"):
        assert not loads(folder)
        if folder.exists():
            with pytest.raises(ModelError, match="was not finished; run `jaxinfer convert` again"):
                model_folder(EngineConfig(str(folder)))
    converted(GOLDENS / "qwen2", out, "orbax")
    assert loads(out)


def test_another_run_does_not_go_on(tmp_path: Path) -> None:
    source, out = family("qwen2", tmp_path / "source"), tmp_path / "out"
    killed_at(2, source, out)
    with pytest.raises(ParameterError, match=r"of another run: dtype is 'float32' there and 'bfloat16' here; quanti"):
        converted(source, out, "orbax", dtype="bfloat16", quantization="int8")
    os.utime(source / SINGLE, (1, 1))
    with pytest.raises(ParameterError, match=r"of another run: model.model.safetensors is \["):
        converted(source, out, "orbax")


def test_a_run_that_reads_another_decoder_does_not_go_on(tmp_path: Path) -> None:
    """As with --architecture: tensors of the same shapes, which lie otherwise."""
    asked = Conversion(GOLDENS / "llama2", tmp_path / "out", "orbax", "float32")
    config = read_declared(asked.folder).config
    killed_at(2, asked.folder, asked.out)
    other = replace(config, names=replace(config.names, interleaved_rope=True))
    with pytest.raises(ParameterError, match=r"of another run: decoder\.names\.interleaved_rope is False there"):
        convert(asked, other)
    convert(asked, config)
    assert_equal_leaves(loaded(asked.out), loaded(asked.folder))


@pytest.mark.parametrize("name", ["merges.txt", "vocab.txt", "tokenizer.model", "LICENSE.md", "chat_template.jinja"])
def test_a_copied_file_that_has_changed(name: str, tmp_path: Path) -> None:
    source, out = family("qwen2", tmp_path / "source"), tmp_path / "out"
    (source / name).write_text("before")
    killed_at(7, source, out)
    (source / name).write_text("and after")
    with pytest.raises(ParameterError, match=rf"of another run: model.{name} is \["):
        converted(source, out, "orbax")


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    with WorkFolder(tmp_path / "out", {}), pytest.raises(ParameterError, match="another run is converting"):
        converted(GOLDENS / "qwen2", tmp_path / "out", "orbax")


@pytest.mark.parametrize("journal", [True, False], ids=["at its end", "ended"])
@pytest.mark.parametrize("call", ["mkdir", "flock"])
def test_another_run_ends_meanwhile(call: str, journal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has renamed its folder since this run looked for it; what it made, and its journal, are left alone."""
    out, work = tmp_path / "out", tmp_path / "out.partial"
    killed_at(2, GOLDENS / "qwen2", out)
    before, lock, mkdir = contents(work), fcntl.flock, Path.mkdir

    def ends() -> None:
        if not out.exists():
            os.rename(work, out)
            if not journal:
                (out / UNFINISHED).unlink()

    with monkeypatch.context() as patched:
        if call == "flock":
            patched.setattr(fcntl, "flock", lambda *arguments: (ends(), lock(*arguments)))
        else:
            patched.setattr(Path, "mkdir", lambda path, **options: (ends(), mkdir(path, **options)))
        with pytest.raises(ParameterError, match="another run has just made"):
            converted(GOLDENS / "qwen2", out, "orbax")
    if not journal:
        del before[UNFINISHED]
    assert contents(out) == before
    assert not work.exists()


def test_a_run_at_its_end_ends_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder has its name already, and its journal goes before this run holds it."""
    out, lock = tmp_path / "out", fcntl.flock
    out.mkdir()
    (out / UNFINISHED).write_text("")
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", lambda *arguments: ((out / UNFINISHED).unlink(), lock(*arguments)))
        with pytest.raises(ParameterError, match="another run has just made"):
            converted(GOLDENS / "qwen2", out, "orbax")
    assert not list(out.iterdir())


@pytest.mark.parametrize("out", [".", "..", "file", "out", "file/out", "../demo", "../demo/out", "/"])
def test_folders_that_cannot_be_made(out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family("qwen2", tmp_path / "demo")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("file").touch()
    Path("out.partial").touch()
    with pytest.raises(ParameterError) as refused:
        converted(tmp_path / "demo", Path(out), "orbax")
    assert refused.value.param == "out"
    assert sorted(path.name for path in Path().iterdir()) == ["file", "out.partial"]


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told before anything is written, where it can be; and where it comes later, the next run goes on."""
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        usage = SimpleNamespace(free=10)
        patched.setattr("shutil.disk_usage", lambda path: usage)
        with pytest.raises(ModelError, match=r"takes about [\d,]+ bytes more; 10 are free"):
            converted(GOLDENS / "qwen2", out, "orbax")
    with monkeypatch.context() as patched:

        def full(*arguments: object) -> None:
            raise OSError(28, "No space left on device")

        patched.setattr(conversion, "_write", full)
        with pytest.raises(JaxinferError, match="cannot be written: No space left on device; the same command goes on"):
            converted(GOLDENS / "qwen2", out, "orbax")
    assert (tmp_path / "out.partial" / KEY).exists()
    assert_equal_leaves(loaded(converted(GOLDENS / "qwen2", out, "orbax")), loaded(GOLDENS / "qwen2"))
