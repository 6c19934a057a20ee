"""Programs kept from one start to the next: the same steps, nothing traced; what they follow from names them."""

import dataclasses
import logging
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jaxinfer_kernels import KVLayout

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel, random_model
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.platform.compile_cache import CompileCache
from jaxinfer.runner.programs import key as program_key
from jaxinfer.runner.programs.compiled import Programs
from jaxinfer.runner.programs.store import ProgramStore, open_store
from jaxinfer.runner.step.group_attention import with_backend
from tests.engine.small import ask
from tests.material import REPOSITORY
from tests.runner.tiny import drive, make_core, tiny_model, tiny_shapes

MODEL = tiny_model()
SHAPES = tiny_shapes(MODEL, max_num_seqs=2, max_num_batched_tokens=16, decode_steps=3)


KEY = bytes(range(32))


def store_in(folder: Path | None, key: bytes = KEY, **changes: Any) -> ProgramStore | None:
    asked: dict[str, Any] = {"model": MODEL, "shapes": SHAPES, "options": {}, **changes}
    return open_store(None if folder is None else CompileCache(folder, key), **asked)


def small_store(folder: Path, name: str = "set", key: bytes = KEY) -> ProgramStore:
    return ProgramStore(CompileCache(folder, key), name, jax.devices()[:1])


def runner_in(folder: Path) -> JaxRunner:
    return JaxRunner(MODEL, SHAPES, options={}, stores=[store_in(folder)])


def tokens_of(runner: JaxRunner) -> dict[Any, list[int]]:
    requests = [ask(name, length, 9, temperature=1.0) for name, length in (("a", 5), ("b", 20), ("c", 3))]
    return {key: output.tokens for key, output in drive(make_core(runner), requests).items()}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Any, list[int]]]:
    """A folder with every program, and what the runner that made them gave."""
    folder = tmp_path_factory.mktemp("cache")
    runner = runner_in(folder)
    runner.warm_up()
    return folder, tokens_of(runner)


def no_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    def lower(programs: Programs, name: Any) -> Any:
        raise AssertionError(f"{name} is traced")

    monkeypatch.setattr(Programs, "lower", lower)


@pytest.mark.parametrize("lazy", [pytest.param(False, marks=pytest.mark.smoke), True])
def test_a_second_start_traces_nothing_and_gives_the_same(kept, lazy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, tokens = kept
    no_tracing(monkeypatch)
    runner = runner_in(folder)
    told: list[Any] = []
    runner.warm_up(lambda *said: told.append(said), when="lazy" if lazy else "all")
    assert tokens_of(runner) == tokens
    if not lazy:
        assert [(done, cached) for _, done, _, _, cached in told] == [(i + 1, True) for i in range(len(told))]
        assert len(told) == len(runner.stages[0].programs.names)
        assert runner.stages[0].programs.seconds.tracing == 0 < runner.stages[0].programs.seconds.total
        assert runner.status().compiles_after_ready == 0


def test_arguments_are_donated_to_a_kept_program(kept) -> None:
    runner = runner_in(kept[0])
    runner.warm_up()
    before = [*runner.stages[0].kv, runner.stages[0].slots.tables[0], runner.stages[0].slots.state.newest]
    tokens_of(runner)
    assert all(array.is_deleted() for array in before)


@pytest.mark.long
def test_a_broken_file_is_made_anew_once(kept, caplog: pytest.LogCaptureFixture) -> None:
    """Though JAX's cache has the program, too."""
    folder, tokens = kept
    (file,) = folder.glob("programs/*/mixed-16")
    good = file.read_bytes()
    for broken in (b"", b"no pickle", good[:-100], good[:1000] + bytes([good[1000] ^ 1]) + good[1001:]):
        file.write_bytes(broken)
        for warnings in (1, 0):
            with caplog.at_level(logging.WARNING):
                runner = runner_in(folder)
                runner.warm_up(when="lazy")
                assert tokens_of(runner) == tokens
            assert [str(file) in record.getMessage() for record in caplog.records] == [True] * warnings
            caplog.clear()


@pytest.mark.long
def test_what_was_removed_is_kept_again(kept, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, tokens = kept
    (programs,) = folder.glob("programs/*")
    shutil.rmtree(programs)
    runner = runner_in(folder)
    runner.warm_up()
    no_tracing(monkeypatch)
    runner = runner_in(folder)
    runner.warm_up()
    assert tokens_of(runner) == tokens


def refuse(*arguments: Any, **options: Any) -> Any:
    raise PermissionError("not yours")


def test_a_folder_that_cannot_be_written_to_is_read(kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be written there, not even when it was used."""
    folder, tokens = kept
    monkeypatch.setattr("os.utime", refuse)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    monkeypatch.setattr(ProgramStore, "save", refuse)
    runner = runner_in(folder)
    runner.warm_up(when="lazy")
    assert tokens_of(runner) == tokens
    assert runner.late_programs.count > 0
    no_tracing(monkeypatch)
    runner = runner_in(folder)
    runner.warm_up(when="lazy")
    assert tokens_of(runner) == tokens


@pytest.mark.parametrize(
    "refused",
    ["jaxinfer.runner.platform.compile_cache.read_file", "tempfile.mkstemp", "os.replace", "pathlib.Path.mkdir"],
)
def test_a_folder_that_refuses_costs_only_time(refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = jax.jit(lambda x: x + 1).lower(1).compile()
    with monkeypatch.context() as patch:
        patch.setattr(refused, refuse)
        store = small_store(tmp_path)
        assert store.load(("admit", 0)) is None
        store.save(("admit", 0), compiled)
        assert store.writable == (refused != "pathlib.Path.mkdir")
    left = [entry.name for entry in (tmp_path / "programs" / "set").glob("*")]
    assert left == (["admit-0"] if refused.endswith("read_file") else [])


def test_writers_do_not_meet(tmp_path: Path) -> None:
    """Threads and processes that keep the same programs at once."""
    compiled = jax.jit(lambda x: x + 1).lower(1).compile()

    def keep(number: int) -> bool:
        store = small_store(tmp_path)
        store.save(("decode", number % 4), compiled)
        return store.load(("decode", number % 4)) is not None

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(keep, range(200)))
    assert len(list((tmp_path / "programs" / "set").iterdir())) == 4


def test_without_a_cache_nothing_is_kept() -> None:
    assert store_in(None) is None


def folder_of(**changes: Any) -> str:
    store = store_in(Path("cache"), **changes)
    assert store is not None
    return store._folder.name


def test_what_programs_follow_from_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: dict[str, Any] = {
        "shapes": dataclasses.replace(SHAPES, max_model_len=64),
        "blocks": tiny_shapes(MODEL, max_num_seqs=2, max_num_batched_tokens=16, decode_steps=3, blocks=401),
        "backend": with_backend(MODEL, 0, "mosaic_gpu"),
        "options": {"xla_backend_optimization_level": "0"},
        "another model": tiny_model((None, 8)),
        "bfloat16": random_model(MODEL.config, dtype=jax.numpy.dtype("bfloat16")),
        "layout": with_backend(MODEL, 0, "xla", KVLayout.HEADS),
    }
    kinds = {EngineShapes: "shapes", LoadedModel: "model", dict: "options"}
    names = [folder_of(), *(folder_of(**{kinds[type(value)]: value}) for value in changed.values())]
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    names.append(folder_of())
    monkeypatch.setattr(program_key, "source_digest", lambda: "other lines")
    names.append(folder_of())
    monkeypatch.setattr(program_key, "processor", lambda: "another")
    names.append(folder_of())
    with jax.default_matmul_precision("highest"):
        names.append(folder_of())
    assert len(set(names)) == len(names) == len(changed) + 5
    assert folder_of() == names[-2]


def test_where_the_cache_is_does_not_matter() -> None:
    before = folder_of()
    for name, other in (("jax_compilation_cache_dir", "/elsewhere"), ("jax_enable_compilation_cache", False)):
        value = jax.config.values[name]
        jax.config.update(name, other)
        try:
            assert folder_of() == before
        finally:
            jax.config.update(name, value)


def test_a_line_of_a_kernel_is_part_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for line in ("x = 1", "x = 2"):
        (tmp_path / "__init__.py").write_text(line)
        monkeypatch.setattr("jaxinfer_kernels.__file__", str(tmp_path / "__init__.py"))
        program_key.source_digest.cache_clear()
        names.append(program_key.source_digest())
    program_key.source_digest.cache_clear()
    assert names[0] != names[1]


@pytest.mark.long
def test_every_module_that_programs_are_made_by_is_followed() -> None:
    code = (
        "import sys, jaxinfer.runner.programs.compiled; print(*(m for m in sys.modules if m.startswith('jaxinfer.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    modules = {name.removeprefix("jaxinfer.").replace(".", "/") for name in done.stdout.split()}
    files = {place for place in program_key.FOLLOWED if place.endswith(".py")}
    folders = set(program_key.FOLLOWED) - files
    alone = {name for name in modules if not any(f"{name}/".startswith(f"{folder}/") for folder in folders)}
    assert {name for name in alone if not {f"{name}.py", f"{name}/__init__.py"} & files} == set()


def test_what_calls_back_is_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As interpreted kernels do."""

    def back(x: jax.Array) -> jax.Array:
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((3,), "float32"), x)

    store = small_store(tmp_path)
    with caplog.at_level(logging.INFO):
        store.save(("decode", 3), jax.jit(back).lower(np.zeros(3, np.float32)).compile())
    assert "decode 3 is not kept" in caplog.text
    assert list((tmp_path / "programs" / "set").iterdir()) == []


def sets_left(folder: Path, days: dict[str, float]) -> list[str]:
    """After one more start: of sets of a kilobyte that were last used so many days ago."""
    folder.mkdir(exist_ok=True)
    small_store(folder, "own")
    for name, age in days.items():
        one = folder / "programs" / name
        one.mkdir()
        (one / "admit-0").write_bytes(bytes(1024))
        then = time.time() - age * 24 * 3600
        os.utime(one, (then, then))
    small_store(folder, "own")
    return sorted(entry.name for entry in (folder / "programs").iterdir())


def test_sets_not_used_for_a_month_go(tmp_path: Path) -> None:
    ages = {"old": 31.0, "used": 29.0, **{f"set{number}": 5.0 for number in range(20)}}
    assert sets_left(tmp_path, ages) == sorted({*ages, "own"} - {"old"})


def test_of_sets_that_take_too_much_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for those of the last day, whose engines may still run."""
    monkeypatch.setattr("jaxinfer.runner.programs.store._MOST_BYTES", 2500)
    ages = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 2.0, "e": 3.0}
    assert sets_left(tmp_path / "many", ages) == ["a", "b", "c", "own"]
    assert sets_left(tmp_path / "few", {"d": 2.0, "e": 3.0, "f": 4.0}) == ["d", "e", "own"]
