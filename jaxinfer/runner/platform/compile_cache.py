"""CompileCache: where compiled programs are kept, and the key that shows that this user has made them.

Programs run when they are loaded, so whoever can put one into the cache runs code as the user who loads it. A cache's
folder may be shared: each user has a folder of their own in it, named after their key, and trusts what the key signed.
With a key that an operator chose, those who know it share a folder that nobody but they and root can write to.
Folders that the user has not used for a month are removed: each key that is lost leaves one behind.
"""

import contextlib
import errno
import hashlib
import hmac
import logging
import os
import re
import secrets
import shutil
import stat
import time
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from jaxinfer.errors import ParameterError
from jaxinfer.runner.platform.owner_only import (
    NotPrivateError,
    make_folder,
    others_can_replace,
    read_file,
    read_trusted,
    refuse_open,
    refuse_writable,
    write_file,
    write_once,
)

log = logging.getLogger(__name__)

_KEY_FILE = "program-key"
_KEY_BYTES = 32
_PREFIX = "jaxinfer-"
_FOLDER = re.compile(_PREFIX + "[0-9a-f]{16}")
UNUSED_SECONDS = 30 * 24 * 3600.0
"""A month: what was not used for longer is removed."""


class CompileCache(NamedTuple):
    """folder: one that only this user can enter, or that stands for it; without links. key: secret, of this user, or if
    shared of an operator; the folder may be root's then, and nobody else can write to it."""

    folder: Path
    key: bytes
    shared: bool = False

    @property
    def writable(self) -> bool:
        """True where this user may add programs to the cache."""
        return os.access(self.folder, os.W_OK | os.X_OK)

    def read(self, file: Path) -> bytes:
        """Read a file whose signature is still to be checked. Raises OSError."""
        return read_trusted(file) if self.shared else read_file(file)

    def write(self, file: Path, content: bytes) -> None:
        """Puts a file there, whole or not at all. Raises OSError."""
        write_file(file, content, 0o644 if self.shared else 0o600)

    def make_folder(self, folder: Path) -> None:
        """Make a folder whose parent exists. Raises OSError."""
        if not self.shared:
            return make_folder(folder)
        if not folder.is_dir():
            folder.mkdir()
            folder.chmod(0o755)
        return refuse_writable(folder.resolve())

    def signature(self, name: str, content: bytes) -> bytes:
        """Sign a file's content under its name: a file that is put in another's place has another signature."""
        return hmac.digest(self.key, f"jaxinfer program {name}\0".encode() + content, "sha256")


def open_cache(folder: str | None, key_file: str | None = None) -> CompileCache | None:
    """This user's part of the cache in `folder`, by default below the user's cache folder; None where there is none.

    key_file: of a key that others know, too. Where this user has no folder for a key of their own, it is kept in
    `folder`, if one is given. Raises ParameterError where `folder` cannot be made or the key is none. What else is in
    the way is logged.
    """
    if key_file is not None and folder in (None, "off"):
        raise ParameterError("compile_cache_key", "needs --compile-cache-dir, whose programs it signs")
    base = _made(folder)
    if base is None:
        return None
    chosen = None if key_file is None else read_key(key_file)
    try:
        key = chosen or user_key(None if folder is None else base)
        own = base / (_PREFIX + hashlib.sha256(b"jaxinfer cache " + key).hexdigest()[:16])
        cache = CompileCache(own, key, shared=chosen is not None)
        cache.make_folder(own)
        if chosen is None:
            _remove_unused(base, own)
    except NotPrivateError as error:
        if chosen is not None:
            raise ParameterError("compile_cache_dir", f"{error.filename}: {error.strerror}") from None
        log.warning("no compiled programs are kept: %s: %s", error.filename or base, error.strerror)
        return None
    except OSError as error:
        log.warning("no compiled programs are kept: %s: %s", error.filename or base, error.strerror)
        return None
    if not cache.writable:
        log.warning("%s cannot be written to: what it holds is used, and nothing is kept there", own)
    return cache


def is_safe_by_itself(cache: CompileCache) -> bool:
    """True where nobody else can put files into the cache, so that those without a signature can be trusted, too."""
    with contextlib.suppress(OSError):
        return not others_can_replace(cache.folder)  # nor write to it: it is private, or was checked when it was opened
    return False


def user_key(cache: Path | None = None) -> bytes:
    """The secret of this user, made when it is first needed, and kept in `cache` where they can have no folder.

    Raises OSError where there is none, or it is no secret.
    """
    return _key_in(_key_folder(cache))


def read_key(file: str, *, make: bool = False) -> bytes:
    """Read an operator's key; make: a new one if there is none. Raises ParameterError."""
    try:
        path = Path(file).expanduser()
        if make and not path.exists():
            refuse_open(path.absolute().parent.resolve(strict=True))
            write_once(path, secrets.token_bytes(_KEY_BYTES))
        key = read_trusted(path)
    except OSError as error:
        raise ParameterError("compile_cache_key", f"{error.filename or file}: {error.strerror}") from None
    except (ValueError, RuntimeError) as error:  # a zero byte, a user without a home
        raise ParameterError("compile_cache_key", f"{file!r}: {error}") from None
    if len(key) < _KEY_BYTES:
        raise ParameterError("compile_cache_key", f"{file} holds {len(key)} bytes; a key has at least {_KEY_BYTES}")
    return key


def _key_folder(cache: Path | None) -> Path:
    """The user's folder; where they can have none, one of their own in `cache`, which others may share."""
    try:
        home = user_folder()
        _make_user_folder(home)
        return home
    except NotPrivateError:
        raise
    except OSError as error:
        if cache is None:
            raise
        own = cache / f"{_PREFIX}key-{os.geteuid()}"
        log.info("the key of compiled programs is in %s: %s", own, error)
        make_folder(own)
        return own


def _make_user_folder(home: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        home.mkdir(mode=0o700)
    found = home.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & 0o077:
        home.chmod(0o700)  # older versions made it as the umask said
    make_folder(home)


def _key_in(folder: Path) -> bytes:
    file = folder / _KEY_FILE
    if not file.exists():
        write_once(file, secrets.token_bytes(_KEY_BYTES))
    key = read_file(file)
    if len(key) != _KEY_BYTES:
        raise OSError(0, f"it must hold {_KEY_BYTES} bytes, not {len(key)}; remove it", str(file))
    return key


def user_folder() -> Path:
    """jaxinfer's folder below the user's cache folder. Raises OSError where the user has no home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxinfer"
    except RuntimeError:  # neither HOME nor a line in passwd, as for the users of some containers
        reason = "this user has no home; set HOME, XDG_CACHE_HOME or --compile-cache-dir"
        raise OSError(errno.ENOENT, reason, "~/.cache/jaxinfer") from None


def default_cache() -> Path:
    """A folder a version and processor: code made for one processor may not run on another."""
    return user_folder() / "xla" / f"jax-{version('jax')}-jaxlib-{version('jaxlib')}-{processor()}"


def processor() -> str:
    """A digest of what code compiled for this processor may rest on; `any` where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "any"
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(" ".join(sorted(features.split())).encode()).hexdigest()[:12]


def _made(folder: str | None) -> Path | None:
    """Without links: others may change one after its target was checked."""
    if folder == "off":
        return None
    try:
        path = default_cache() if folder is None else Path(folder).expanduser()
        path.mkdir(parents=True, exist_ok=True)
        return path.resolve()
    except RuntimeError as error:  # of expanduser
        raise ParameterError("compile_cache_dir", f"{folder}: {error}") from None
    except OSError as error:
        if folder is not None:
            raise ParameterError("compile_cache_dir", f"cannot make {error.filename}: {error.strerror}") from None
        log.warning("no compiled programs are kept: cannot make %s: %s", error.filename, error.strerror)
        return None


def _remove_unused(base: Path, own: Path) -> None:
    """Removes folders in `base` that this user has not used for a month, and notes the use of `own`."""
    with contextlib.suppress(OSError):  # a cache that can only be read
        os.utime(own)
        for entry in base.iterdir():
            if _FOLDER.fullmatch(entry.name) and _is_unused(entry):
                shutil.rmtree(entry, ignore_errors=True)
    with contextlib.suppress(OSError):
        _remove_earlier(base)


def _remove_earlier(base: Path) -> None:
    """Remove unused entries that earlier versions of jaxinfer, or of JAX, have left in the default folder, where
    nothing but jaxinfer puts anything."""
    parent = user_folder().resolve() / "xla"
    if base.parent != parent:
        return
    os.utime(base)
    for entry in [*base.iterdir(), *parent.iterdir()]:
        if _is_unused(entry):
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink()


def _is_unused(entry: Path) -> bool:
    found = entry.lstat()
    return found.st_uid == os.geteuid() and time.time() - found.st_mtime > UNUSED_SECONDS
