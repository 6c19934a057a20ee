"""Programs run when they are loaded: only those of this user's own making are, whatever else lies in the cache."""

import hashlib
import hmac
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxinfer.errors import ParameterError
from jaxinfer.runner.platform.compile_cache import CompileCache, default_cache, is_safe_by_itself, open_cache, user_key
from jaxinfer.runner.platform.owner_only import NotPrivateError, make_folder, read_file
from jaxinfer.runner.programs.store import ProgramStore
from tests.material import REPOSITORY

KEY = bytes(range(32))
OTHER = 4321
"""A user who is not this one."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to give files to others")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "jaxinfer"


@pytest.fixture(scope="module")
def program() -> Any:
    return jax.jit(lambda x: x + 1).lower(1).compile()


def store_in(folder: Path, key: bytes = KEY, name: str = "set") -> ProgramStore:
    return ProgramStore(CompileCache(folder, key), name, jax.devices()[:1])


class Bomb:
    """Makes a file where it is unpickled."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.trace,)


def test_what_is_signed_by_the_key_is_loaded(tmp_path: Path, program: Any) -> None:
    store_in(tmp_path).save(("decode", 1), program)
    assert store_in(tmp_path).load(("decode", 1)) is not None
    content = (tmp_path / "programs" / "set" / "decode-1").read_bytes()
    expected = hmac.new(KEY, b"jaxinfer program set/decode-1\0" + content[32:], hashlib.sha256)
    assert content[:32] == expected.digest()


@pytest.mark.smoke
@pytest.mark.parametrize("sign", ["digest", "another key", "no signature"])
def test_what_others_have_made_never_runs(tmp_path: Path, sign: str, caplog: pytest.LogCaptureFixture) -> None:
    store = store_in(tmp_path)
    content = pickle.dumps(Bomb(tmp_path / "trace"))
    head = {
        "digest": hashlib.sha256(content).digest(),
        "another key": CompileCache(tmp_path, bytes(32)).signature("set/decode-1", content),
        "no signature": b"",
    }[sign]
    file = tmp_path / "programs" / "set" / "decode-1"
    file.write_bytes(head + content)
    file.chmod(0o600)
    assert store.load(("decode", 1)) is None
    assert not (tmp_path / "trace").exists()
    assert str(file) in caplog.text
    file.write_bytes(CompileCache(tmp_path, KEY).signature("set/decode-1", content) + content)
    store.load(("decode", 1))
    assert (tmp_path / "trace").exists()  # the bomb is one


def test_a_program_in_the_place_of_another_is_not_loaded(tmp_path: Path, program: Any) -> None:
    store, other = store_in(tmp_path), store_in(tmp_path, name="other")
    store.save(("decode", 1), program)
    content = (tmp_path / "programs" / "set" / "decode-1").read_bytes()
    for place in ("set/decode-2", "other/decode-1"):
        (tmp_path / "programs" / place).write_bytes(content)
        (tmp_path / "programs" / place).chmod(0o600)
    assert store.load(("decode", 2)) is None
    assert other.load(("decode", 1)) is None


@pytest.mark.parametrize("change", ["link", "readable", "pipe"])
def test_a_program_that_is_not_the_owners_file_is_not_loaded(tmp_path: Path, program: Any, change: str) -> None:
    store = store_in(tmp_path)
    store.save(("decode", 1), program)
    file = tmp_path / "programs" / "set" / "decode-1"
    if change == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    elif change == "pipe":
        file.unlink()
        os.mkfifo(file, 0o600)
    else:
        file.chmod(0o640)
    assert store.load(("decode", 1)) is None
    store.save(("decode", 1), program)
    assert store.load(("decode", 1)) is not None


@needs_root
def test_programs_of_another_user_are_not_loaded(tmp_path: Path, program: Any) -> None:
    store = store_in(tmp_path)
    store.save(("decode", 1), program)
    os.chown(tmp_path / "programs" / "set" / "decode-1", OTHER, OTHER)
    assert store.load(("decode", 1)) is None
    os.chown(tmp_path / "programs" / "set", OTHER, OTHER)
    assert not store_in(tmp_path).writable


# The key


def test_the_key_is_made_once_and_only_its_owner_can_read_it(home: Path) -> None:
    key = user_key()
    assert len(key) == 32
    assert user_key() == key
    assert (home / "program-key").stat().st_mode & 0o777 == 0o600
    assert home.stat().st_mode & 0o777 == 0o700
    assert [entry.name for entry in home.iterdir()] == ["program-key"]


def test_of_processes_that_start_at_once_all_get_the_same_key(home: Path) -> None:
    code = "from jaxinfer.runner.platform.compile_cache import user_key; print(user_key().hex())"
    command = [sys.executable, "-c", code]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY) for _ in range(8)]
    assert len({process.communicate(timeout=60)[0] for process in started}) == 1
    assert [entry.name for entry in home.iterdir()] == ["program-key"]


def test_the_folder_of_an_older_version_is_closed_to_others(home: Path) -> None:
    home.mkdir(mode=0o755, parents=True)
    home.chmod(0o775)
    user_key()
    assert home.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("change", ["readable", "link", "short", "folder is a link"])
def test_a_key_that_is_no_secret_is_refused_and_nothing_is_kept(
    home: Path, tmp_path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    user_key()
    file = home / "program-key"
    if change == "readable":
        file.chmod(0o644)
    elif change == "link":
        file.rename(tmp_path / "key")
        file.symlink_to(tmp_path / "key")
    elif change == "short":
        file.write_bytes(b"1")
    else:
        home.rename(tmp_path / "elsewhere")
        home.symlink_to(tmp_path / "elsewhere")
    assert open_cache(str(tmp_path / "cache")) is None
    assert "no compiled programs are kept" in caplog.text
    assert str(home) in caplog.text


@needs_root
def test_a_key_of_somebody_else_is_refused(home: Path, tmp_path: Path) -> None:
    user_key()
    os.chown(home / "program-key", OTHER, OTHER)
    assert open_cache(str(tmp_path / "cache")) is None


def test_a_full_disk_or_one_without_links_costs_only_time(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tempfile.mkstemp", refuse)
        assert open_cache(str(tmp_path / "cache")) is None
    monkeypatch.setattr("os.link", refuse)
    assert open_cache(str(tmp_path / "cache")) is not None
    assert [entry.name for entry in home.iterdir()] == ["program-key"]


# The folder


def test_users_of_one_folder_have_parts_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, parts = tmp_path / "shared", []
    for user in ("a", "b"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / user))
        cache = open_cache(str(shared))
        assert cache is not None
        assert cache.folder.stat().st_mode & 0o777 == 0o700
        parts.append(cache.folder)
    assert len(set(parts)) == 2


def test_a_part_that_others_can_enter_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = open_cache(str(tmp_path / "cache"))
    assert cache is not None
    cache.folder.chmod(0o770)
    assert open_cache(str(tmp_path / "cache")) is None
    assert "others may use it (mode 770)" in caplog.text


def test_where_others_can_replace_the_folder_jaxs_own_cache_is_not_trusted(tmp_path: Path) -> None:
    cache = open_cache(str(tmp_path / "cache"))
    assert cache is not None
    assert is_safe_by_itself(cache)
    (tmp_path / "cache").chmod(0o777)
    assert not is_safe_by_itself(cache)
    (tmp_path / "cache").chmod(0o1777)  # as /tmp: nobody can take away what is another's
    assert is_safe_by_itself(cache)


def test_a_path_with_a_link_is_not_safe_by_itself(tmp_path: Path) -> None:
    """Others may change the link after its target was looked at."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    assert is_safe_by_itself(CompileCache(tmp_path / "real", KEY))
    assert not is_safe_by_itself(CompileCache(tmp_path / "link", KEY))


# Users without a home


@pytest.fixture
def homeless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container's user whom passwd does not know."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", home)


@pytest.mark.usefixtures("homeless")
def test_without_a_home_nothing_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    assert open_cache(None) is None
    assert "no compiled programs are kept" in caplog.text
    assert "XDG_CACHE_HOME or --compile-cache-dir" in caplog.text


@pytest.mark.usefixtures("homeless")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to become another user")
def test_a_user_whom_passwd_does_not_know_has_no_home() -> None:
    """The fixture does as Python does."""
    code = "import os, pwd; from pathlib import Path; os.setuid(54321); Path.home()"
    environment = {name: value for name, value in os.environ.items() if name != "HOME"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "RuntimeError: Could not determine home directory" in done.stderr


@pytest.mark.parametrize("kind", ["none", "a file", "not writable"])
def test_without_a_home_the_key_is_in_the_folder_that_is_given(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if kind == "none":
        request.getfixturevalue("homeless")
    elif kind == "a file":
        (tmp_path / "home").touch()
    else:
        made = Path.mkdir

        def refuse(path: Path, *arguments: Any, **options: Any) -> None:
            if path.is_relative_to(tmp_path / "home"):
                raise PermissionError(13, "Permission denied", str(path))
            made(path, *arguments, **options)

        monkeypatch.setattr(Path, "mkdir", refuse)
    shared = tmp_path / "shared"
    cache = open_cache(str(shared))
    assert cache is not None
    assert open_cache(str(shared)) == cache
    [file] = shared.glob("*/program-key")
    assert file.read_bytes() == cache.key
    assert file.parent.stat().st_mode & 0o777 == 0o700
    file.parent.chmod(0o755)
    assert open_cache(str(shared)) is None


# What is not used any more

MONTH = 31 * 24 * 3600


def last_used(entry: Path, seconds_ago: float) -> None:
    at = entry.lstat().st_mtime - seconds_ago
    os.utime(entry, (at, at), follow_symlinks=False)


def test_what_a_lost_key_has_left_goes_after_a_month(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, parts = tmp_path / "shared", []
    for user in ("lost", "new", "used"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / user))
        cache = open_cache(str(shared))
        assert cache is not None
        store_in(cache.folder)
        parts.append(cache.folder)
    lost, new, used = parts
    (shared / "programs").mkdir()  # somebody's, it may be
    (shared / "0123456789abcdef").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (shared / f"jaxinfer-{0:016x}").symlink_to(tmp_path / "elsewhere")
    for entry in (*set(shared.iterdir()) - {new}, tmp_path / "elsewhere"):
        last_used(entry, MONTH)
    cache = open_cache(str(shared))
    assert cache is not None
    assert cache.folder == used
    assert not lost.exists()
    assert new.exists()
    assert used.exists()
    assert (shared / "programs").exists()
    assert (shared / "0123456789abcdef").exists()
    assert (tmp_path / "elsewhere").exists()
    last_used(new, MONTH)
    assert open_cache(str(shared)) == cache
    assert not new.exists()


@needs_root
def test_what_others_have_not_used_stays(tmp_path: Path) -> None:
    theirs = tmp_path / "shared" / f"jaxinfer-{0:016x}"
    theirs.mkdir(parents=True)
    os.chown(theirs, OTHER, OTHER)
    last_used(theirs, MONTH)
    assert open_cache(str(tmp_path / "shared")) is not None
    assert theirs.exists()


def test_what_earlier_versions_have_left_in_the_users_cache_goes(home: Path) -> None:
    base = default_cache()
    old = [base / "programs", base / "jit_step-0123-cache", base.parent / "jax-0.1-jaxlib-0.1-cpu"]
    recent = [base / "jit_other-0123-cache", base.parent / "jax-0.2-jaxlib-0.2-cpu"]
    for entry in (*old, *recent):
        entry.parent.mkdir(parents=True, exist_ok=True)
        entry.touch() if entry.name.endswith("-cache") else entry.mkdir()
    for entry in (*old, base):
        last_used(entry, MONTH)
    cache = open_cache(None)
    assert cache is not None
    assert [entry for entry in (*old, *recent, cache.folder) if entry.exists()] == [*recent, cache.folder]
    assert (home / "program-key").exists()


def test_beside_a_default_that_is_a_link_nothing_is_removed(home: Path, tmp_path: Path) -> None:
    (tmp_path / "data" / "cache").mkdir(parents=True)
    (tmp_path / "data" / "thesis").mkdir()
    (tmp_path / "data" / "cache" / "programs").mkdir()
    default_cache().parent.mkdir(parents=True)
    default_cache().symlink_to(tmp_path / "data" / "cache")
    for entry in ((tmp_path / "data" / "thesis"), (tmp_path / "data" / "cache" / "programs")):
        last_used(entry, MONTH)
    assert open_cache(None) is not None
    assert (tmp_path / "data" / "thesis").exists()
    assert (tmp_path / "data" / "cache" / "programs").exists()


def test_errors_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "open").touch(mode=0o644)
    with pytest.raises(NotPrivateError, match=r"others may use it \(mode 644\): '.*/open'"):
        read_file(tmp_path / "open")
    with pytest.raises(NotPrivateError, match=r"it must be a folder and no link: '.*/open'"):
        make_folder(tmp_path / "open")


def shared(folder: Path, content: bytes = KEY, mode: int = 0o600) -> CompileCache:
    folder.mkdir(exist_ok=True)
    key = folder.parent / "shared-key"
    key.write_bytes(content)
    key.chmod(mode)
    cache = open_cache(str(folder), str(key))
    assert cache is not None
    return cache


def test_what_a_chosen_key_signed_is_loaded_by_another_user(
    tmp_path: Path, program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of files that root or they themselves own. Without root's rights it is the same user, again."""
    ProgramStore(shared(tmp_path / "cache"), "set", jax.devices()[:1]).save(("decode", 1), program)
    (file,) = tmp_path.glob("cache/jaxinfer-*/programs/set/decode-1")
    modes = [path.stat().st_mode & 0o777 for path in (file, *file.parents[:3])]
    assert modes == [0o644, 0o755, 0o755, 0o755]
    if os.geteuid() == 0:
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    again = ProgramStore(shared(tmp_path / "cache"), "set", jax.devices()[:1])
    assert again.load(("decode", 1)) is not None
    content, trace = file.read_bytes(), tmp_path / "trace"
    file.write_bytes(content[:32] + pickle.dumps(Bomb(trace)))
    assert again.load(("decode", 1)) is None
    assert not trace.exists()


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o1770, 0o775])
def test_a_shared_folder_that_others_can_write_to_is_refused(mode: int, tmp_path: Path) -> None:
    """JAX's own cache, whose programs nobody signs, and notes of measurements lie in it."""
    cache = shared(tmp_path / "cache")
    cache.folder.chmod(mode)
    with pytest.raises(
        ParameterError, match=rf"{cache.folder}: others can change it \(user \d+, mode {mode:o}\)"
    ) as error:
        shared(tmp_path / "cache")
    assert error.value.param == "compile_cache_dir"


@needs_root
def test_a_shared_folder_of_others_is_refused_before_anything_in_it_is_removed(tmp_path: Path) -> None:
    cache = shared(tmp_path / "cache")
    os.chown(cache.folder, OTHER, OTHER)
    with pytest.raises(ParameterError, match="others can change it"):
        shared(tmp_path / "cache")


def test_nothing_is_removed_from_a_shared_folder(tmp_path: Path, program: Any) -> None:
    """Servers that only read it do not tell what they use."""
    cache = shared(tmp_path / "cache")
    ProgramStore(cache, "old", jax.devices()[:1]).save(("decode", 1), program)
    old = cache.folder / "programs" / "old"
    for path in (old, old / "decode-1"):
        os.utime(path, (0, 0))
    ProgramStore(shared(tmp_path / "cache"), "new", jax.devices()[:1])
    assert (old / "decode-1").is_file()


def test_another_key_has_programs_of_its_own(tmp_path: Path, program: Any) -> None:
    ProgramStore(shared(tmp_path / "cache"), "set", jax.devices()[:1]).save(("decode", 1), program)
    other = ProgramStore(shared(tmp_path / "cache", bytes(40)), "set", jax.devices()[:1])
    assert other.load(("decode", 1)) is None


@pytest.mark.parametrize(
    ("content", "mode", "told"),
    [
        (bytes(31), 0o600, "holds 31 bytes; a key has at least 32"),
        (KEY, 0o666, r"others can change it .*mode 666"),
        (KEY, 0o1666, "others can change it"),
    ],
)
def test_what_is_no_key_is_refused(content: bytes, mode: int, told: str, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=told) as error:
        shared(tmp_path / "cache", content, mode)
    assert error.value.param == "compile_cache_key"


def test_a_key_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="No such file"):
        open_cache(str(tmp_path), str(tmp_path / "none"))


@pytest.mark.parametrize("hops", [0, 1, 2])
def test_a_key_that_others_can_replace_is_refused(hops: int, tmp_path: Path) -> None:
    """By a link to a file that everybody knows, say. Links in folders of one's own are followed."""
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    for folder in (theirs, mine):
        folder.mkdir()
    for name in ("a", "b"):
        (mine / name).write_bytes(KEY)
    key = mine / "a"
    for hop in range(hops):
        link = (theirs if hop == hops - 1 else mine) / f"link-{hop}"
        link.symlink_to(key)
        key = link
    (mine / "last").symlink_to(key)
    assert open_cache(str(tmp_path / "cache"), str(mine / "last")) is not None
    (theirs if hops else mine).chmod(0o777)
    with pytest.raises(ParameterError, match=r"others can change it .*mode 777"):
        open_cache(str(tmp_path / "cache"), str(mine / "last"))


def test_a_key_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ParameterError, match="it must be a file"):
        open_cache(str(tmp_path / "cache"), str(tmp_path / "pipe"))
    for name in ("a\0b", "~nobody-of-that-name/key"):
        with pytest.raises(ParameterError) as error:
            open_cache(str(tmp_path / "cache"), name)
        assert error.value.param == "compile_cache_key"


@pytest.mark.parametrize("folder", [None, "off"])
def test_a_key_needs_a_folder(folder: str | None, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(KEY)
    with pytest.raises(ParameterError, match="needs --compile-cache-dir"):
        open_cache(folder, str(tmp_path / "key"))
