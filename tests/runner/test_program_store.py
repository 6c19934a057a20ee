"""Programs kept from one start to the next: the same steps, nothing traced; what they follow from names them."""

import dataclasses
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jaxinfer_kernels import KVLayout

from jaxinfer.engine.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel, random_model
from jaxinfer.runner import program_store
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.program_store import ProgramStore, open_store
from jaxinfer.runner.programs import Programs
from tests.engine.small import ask
from tests.runner.tiny import drive, make_core, tiny_model, tiny_shapes

MODEL = tiny_model()
SHAPES = tiny_shapes(MODEL, max_num_seqs=2, max_num_batched_tokens=16, decode_steps=3)


def store_in(folder: Path | None, **changes: Any) -> ProgramStore | None:
    asked: dict[str, Any] = {"model": MODEL, "shapes": SHAPES, "backend": "xla", "options": {}, **changes}
    return open_store(folder, **asked)


def runner_in(folder: Path) -> JaxRunner:
    return JaxRunner(MODEL, SHAPES, options={}, store=store_in(folder))


def tokens_of(runner: JaxRunner) -> dict[Any, list[int]]:
    requests = [ask(name, length, 9, temperature=1.0) for name, length in (("a", 5), ("b", 20), ("c", 3))]
    return {key: output.tokens for key, output in drive(make_core(runner), requests).items()}


@pytest.fixture(autouse=True, scope="module")
def without_jax_cache() -> Iterator[None]:
    """What comes from there is not kept."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


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


@pytest.mark.smoke
@pytest.mark.parametrize("lazy", [False, True])
def test_a_second_start_traces_nothing_and_gives_the_same(kept, lazy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, tokens = kept
    no_tracing(monkeypatch)
    runner = runner_in(folder)
    told: list[Any] = []
    runner.warm_up(lambda *said: told.append(said), lazy=lazy)
    assert tokens_of(runner) == tokens
    if not lazy:
        assert [(done, cached) for _, done, _, _, cached in told] == [(i + 1, True) for i in range(len(told))]
        assert len(told) == len(runner.programs.names)
        assert runner.programs.seconds.tracing == 0 < runner.programs.seconds.total
        assert runner.compiles_after_ready == 0


def test_arguments_are_donated_to_a_kept_program(kept) -> None:
    runner = runner_in(kept[0])
    runner.warm_up()
    before = [*runner.kv, runner._tables[0], runner._state.length]
    tokens_of(runner)
    assert all(array.is_deleted() for array in before)


def test_a_broken_file_is_made_anew(kept, caplog: pytest.LogCaptureFixture) -> None:
    folder, tokens = kept
    (file,) = folder.glob("programs/*/mixed-16")
    for broken in (b"", b"no pickle", file.read_bytes()[:-100]):
        file.write_bytes(broken)
        with caplog.at_level(logging.WARNING):
            runner = runner_in(folder)
            runner.warm_up(lazy=True)
            assert tokens_of(runner) == tokens
        assert [str(file) in record.getMessage() for record in caplog.records] == [True]
        caplog.clear()
    assert ("mixed", 16) in (store_in(folder) or ())


def test_without_a_cache_nothing_is_kept() -> None:
    assert store_in(None) is None


def folder_of(**changes: Any) -> str:
    store = store_in(Path("cache"), **changes)
    assert store is not None
    return store._folder.name


def test_what_programs_follow_from_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: dict[str, Any] = {
        "shapes": dataclasses.replace(SHAPES, max_model_len=64),
        "pages": tiny_shapes(MODEL, max_num_seqs=2, max_num_batched_tokens=16, decode_steps=3, pages=401),
        "backend": "mosaic_gpu",
        "options": {"xla_backend_optimization_level": "0"},
        "another model": tiny_model((None, 8)),
        "bfloat16": random_model(MODEL.config, dtype=jax.numpy.dtype("bfloat16")),
        "layout": dataclasses.replace(MODEL, kv_layout=KVLayout.HEADS),
    }
    kinds = {EngineShapes: "shapes", LoadedModel: "model", str: "backend", dict: "options"}
    names = [folder_of(), *(folder_of(**{kinds[type(value)]: value}) for value in changed.values())]
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    names.append(folder_of())
    monkeypatch.setattr(program_store, "_source_digest", lambda: "other lines")
    names.append(folder_of())
    monkeypatch.setattr(program_store, "processor", lambda: "another")
    names.append(folder_of())
    with jax.default_matmul_precision("highest"):
        names.append(folder_of())
    assert len(set(names)) == len(names) == len(changed) + 5
    assert folder_of() == names[-2]


def test_where_the_cache_is_does_not_matter() -> None:
    before = folder_of()
    folder = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", "/elsewhere")
    try:
        assert folder_of() == before
    finally:
        jax.config.update("jax_compilation_cache_dir", folder)


def test_a_line_of_a_kernel_is_part_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for line in ("x = 1", "x = 2"):
        (tmp_path / "__init__.py").write_text(line)
        monkeypatch.setattr("jaxinfer_kernels.__file__", str(tmp_path / "__init__.py"))
        program_store._source_digest.cache_clear()
        names.append(program_store._source_digest())
    program_store._source_digest.cache_clear()
    assert names[0] != names[1]


def test_what_calls_back_is_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As interpreted kernels do."""

    def back(x: jax.Array) -> jax.Array:
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((3,), "float32"), x)

    store = ProgramStore(tmp_path / "programs", jax.devices()[:1])
    with caplog.at_level(logging.INFO):
        store.save(("decode", 3), jax.jit(back).lower(np.zeros(3, np.float32)).compile())
    assert "decode-3 is not kept" in caplog.text
    assert ("decode", 3) not in store
    assert list((tmp_path / "programs").iterdir()) == []


def test_the_sets_used_last_stay(tmp_path: Path) -> None:
    compiled = jax.jit(lambda x: x + 1).lower(1).compile()
    for number in range(12):
        store = ProgramStore(tmp_path / f"set{number}", jax.devices()[:1])
        store.save(("admit", 0), compiled)
        os.utime(tmp_path / f"set{number}", (number, number))
        if number == 6:  # the first is used again
            os.utime(tmp_path / "set0", (100, 100))
    left = sorted(int(entry.name.removeprefix("set")) for entry in tmp_path.iterdir())
    assert left == [0, 5, 6, 7, 8, 9, 10, 11]
