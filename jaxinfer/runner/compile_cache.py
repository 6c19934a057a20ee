"""CompileCache: where compiled programs are kept, and the key that shows that this user has made them.

Programs run when they are loaded, so whoever can put one into the cache runs code as the user who loads it. A cache's
folder may be shared: each user has a folder of their own in it, named after their key, and trusts what the key signed.
"""

import contextlib
import hashlib
import hmac
import logging
import os
import secrets
import stat
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from jaxinfer.errors import ParameterError
from jaxinfer.runner.owner_only import make_folder, others_can_replace, read_file, write_once
from jaxinfer.runner.processor import processor

log = logging.getLogger(__name__)

_KEY_FILE = "program-key"
_KEY_BYTES = 32


class CompileCache(NamedTuple):
    """folder: one that only this user can enter, or that stands for it. key: secret, of this user."""

    folder: Path
    key: bytes

    @property
    def writable(self) -> bool:
        """Whether anything can be kept."""
        return os.access(self.folder, os.W_OK | os.X_OK)

    def signature(self, name: str, content: bytes) -> bytes:
        """Of a file's content under its name: a file that is put in another's place has another signature."""
        return hmac.digest(self.key, f"jaxinfer program {name}\0".encode() + content, "sha256")


def open_cache(folder: str | None) -> CompileCache | None:
    """This user's part of the cache in `folder`, by default below the user's cache folder; None where there is none.

    Raises ParameterError where `folder` cannot be made. What else is in the way is logged.
    """
    base = _made(folder)
    if base is None:
        return None
    try:
        key = user_key()
        own = base / hashlib.sha256(b"jaxinfer cache " + key).hexdigest()[:16]
        make_folder(own)
    except OSError as error:
        log.warning("no compiled programs are kept: %s: %s", error.filename or base, error.strerror)
        return None
    cache = CompileCache(own, key)
    if not cache.writable:
        log.warning("%s cannot be written to: what it holds is used, and nothing is kept there", own)
    return cache


def is_safe_by_itself(cache: CompileCache) -> bool:
    """True where nobody else can put files into the cache, so that those without a signature can be trusted, too."""
    with contextlib.suppress(OSError):
        return not others_can_replace(cache.folder)
    return False


def user_key() -> bytes:
    """The secret of this user, made when it is first needed. Raises OSError where there is none, or it is no secret."""
    home = user_folder()
    home.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        home.mkdir(mode=0o700)
    found = home.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & 0o077:
        home.chmod(0o700)  # older versions made it as the umask said
    make_folder(home)
    file = home / _KEY_FILE
    if not file.exists():
        write_once(file, secrets.token_bytes(_KEY_BYTES))
    key = read_file(file)
    if len(key) != _KEY_BYTES:
        raise OSError(0, f"it must hold {_KEY_BYTES} bytes, not {len(key)}; remove it", str(file))
    return key


def user_folder() -> Path:
    """jaxinfer's folder below the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxinfer"


def default_cache() -> Path:
    """A folder a version and processor: code made for one processor may not run on another."""
    return user_folder() / "xla" / f"jax-{version('jax')}-jaxlib-{version('jaxlib')}-{processor()}"


def _made(folder: str | None) -> Path | None:
    if folder == "off":
        return None
    path = default_cache() if folder is None else Path(folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if folder is not None:
            raise ParameterError("compile_cache_dir", f"cannot make {path}: {error.strerror}") from None
        log.warning("no compiled programs are kept: cannot make %s: %s", path, error.strerror)
        return None
    return path
