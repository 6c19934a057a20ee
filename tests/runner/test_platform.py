"""Where compiled programs are kept, and what is said where they cannot be."""

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from jaxinfer.errors import ParameterError
from jaxinfer.runner.platform.autotune_cache import read_note, write_note
from jaxinfer.runner.platform.compile_cache import default_cache
from jaxinfer.runner.platform.values import resolve_dtype, usable_memory, use_compile_cache

_SETTINGS = (
    "jax_enable_compilation_cache", "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)  # fmt: skip


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """As they were, afterwards."""
    before = {name: jax.config.values[name] for name in _SETTINGS}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_a_folder_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    cache = use_compile_cache(str(folder))
    assert cache is not None
    assert cache.folder.parent == folder
    assert cache.folder.is_dir()
    assert jax.config.values["jax_compilation_cache_dir"] == str(cache.folder)
    assert jax.config.values["jax_persistent_cache_min_compile_time_secs"] == 0


def test_one_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in ("file", "file/below"):
        with pytest.raises(ParameterError, match=f"cannot make .*/{folder}: (File exists|Not a directory)") as caught:
            use_compile_cache(str(tmp_path / folder))
        assert caught.value.param == "compile_cache_dir"


def test_where_home_takes_none_it_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "home").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert use_compile_cache(None) is None
    assert "no compiled programs are kept: cannot make" in caplog.text
    assert not jax.config.values["jax_enable_compilation_cache"]


def test_off_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    assert use_compile_cache("off") is None
    assert not jax.config.values["jax_enable_compilation_cache"]
    assert not caplog.records


def test_one_that_cannot_be_written_to_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = use_compile_cache(str(tmp_path))
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with caplog.at_level(logging.WARNING):
        assert use_compile_cache(str(tmp_path)) == before is not None
    (record,) = caplog.records
    assert "cannot be written to" in record.getMessage()
    assert jax.config.values["jax_persistent_cache_min_compile_time_secs"] == math.inf


def test_the_default_is_under_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache().is_relative_to(tmp_path / "jaxinfer")


def test_where_others_can_replace_the_folder_jax_keeps_nothing(tmp_path: Path) -> None:
    """Its files have no signature."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    cache = use_compile_cache(str(shared))
    assert cache is not None
    assert not jax.config.values["jax_enable_compilation_cache"]


def test_a_link_is_followed_once(tmp_path: Path) -> None:
    """Whoever can change it later must not choose what JAX loads, which has no signature."""
    shared, mine = tmp_path / "shared", tmp_path / "mine"
    shared.mkdir()
    shared.chmod(0o777)
    mine.mkdir()
    (shared / "link").symlink_to(mine)
    cache = use_compile_cache(str(shared / "link"))
    assert cache is not None
    assert cache.folder.parent == mine
    assert jax.config.values["jax_compilation_cache_dir"] == str(cache.folder)


def test_the_folder_of_a_user_without_a_home_is_refused() -> None:
    with pytest.raises(ParameterError, match="home") as caught:
        use_compile_cache("~nobody-of-this-name/cache")
    assert caught.value.param == "compile_cache_dir"


def test_a_note_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    write_note(tmp_path / "absent" / "note.json", {"bytes": 1})
    assert read_note(tmp_path / "absent" / "note.json", "bytes") is None
    write_note(tmp_path / "note.json", {"bytes": 1})
    assert read_note(tmp_path / "note.json", "bytes") == 1
    assert read_note(tmp_path / "note.json", "other") is None
    write_note(None, {"bytes": 1})
    assert read_note(None, "bytes") is None


@pytest.mark.parametrize(("platform", "wanted"), [("cpu", "float32"), ("cuda", "bfloat16"), ("tpu", "bfloat16")])
def test_auto_is_a_type_that_the_platform_computes_fast(
    platform: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    assert resolve_dtype("auto") == wanted
    assert resolve_dtype("float16") == "float16"


def test_the_device_with_the_least_memory_bounds_a_mesh() -> None:
    told: list[dict[str, int] | None] = [{"bytes_limit": 1000}, {"bytes_limit": 600}, {"bytes_limit": 800}]
    devices = [SimpleNamespace(process_index=0, memory_stats=lambda stats=stats: stats) for stats in told]
    other = SimpleNamespace(process_index=1, memory_stats=lambda: 1 / 0)  # nobody tells of another host's
    mesh: Any = SimpleNamespace(devices=np.array([*devices, other]).reshape(1, 1, 1, 4))
    assert usable_memory(0.5, mesh) == 300
    mesh.devices = mesh.devices[..., :1]
    assert usable_memory(0.5, mesh) == 500
    assert usable_memory(0.5) is None
