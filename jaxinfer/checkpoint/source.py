"""Find a model: a local folder, or a hub id whose files are fetched. No jax."""

import difflib
import logging
import os
import re
from pathlib import Path

from jaxinfer.checkpoint.owners import candidates
from jaxinfer.errors import ModelError
from jaxinfer.folder_files import UNFINISHED, is_there

log = logging.getLogger(__name__)

# Data formats only: weights, configuration, tokenizer, chat template.
_WANTED = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_TIMEOUT_SECONDS = 5

_GGUF = ".gguf"
_NO_GGUF = "GGUF is not supported yet; give a folder or a hub id with safetensors"

DEMO_NAME = "demo"
"""The name of the model in the package."""
DEMO_DRAFTERS = ("demo/draft", "demo/eagle3")
"""The names of those that draft for it: a smaller model, and an EAGLE-3 head."""


def resolve(model: str, revision: str | None = None, *, needs: str = "config.json") -> Path:
    """The folder of `model`: an existing folder that holds the file `needs`, or a hub id `owner/name` at `revision`.

    A name without an owner, `Qwen3-0.6B`, stands for the one model of that name that is in the local cache or has a
    known owner (owners.py).

    revision: a branch, tag or commit. A hub model that is in the local cache whole needs no network. Raises
    ModelError, with what to do, for a name that is neither, for a folder without that file, for a hub model that does
    not exist, needs a token, or cannot be reached. HF_TOKEN, HF_HUB_OFFLINE and HF_HOME are honoured.
    """
    if (folder := _folder(model, revision, needs)) is not None:
        return folder
    folder = Path(model).expanduser()
    if found := _with_owner(model):
        log.warning("%s is taken for %s", model, found)
        return _fetch(found, revision, folder, needs)
    _check_id(model, folder)
    return _fetch(model, revision, folder, needs)


def check_name(model: str, revision: str | None = None) -> None:
    """Raises ModelError as `resolve` does for what is known of a name without a network. The demo's names are fine."""
    folder = Path(model).expanduser()
    if folder.is_dir() or model in (DEMO_NAME, *DEMO_DRAFTERS):
        return  # what a folder lacks is told by who reads it
    if _folder(model, revision, "config.json") is None and not _with_owner(model):
        _check_id(model, folder)


def _folder(model: str, revision: str | None, needs: str) -> Path | None:
    """The folder that a name is, None if it may be of the hub. Raises ModelError."""
    folder = Path(model).expanduser()
    if model and folder.is_dir():
        if revision is not None:
            raise ModelError(f"{model}: is a folder; revision {revision!r} is for hub models only")
        if is_there(folder / UNFINISHED):
            raise ModelError(f"{folder}: is a conversion that was not finished; run `jaxinfer convert` again as before")
        if not (folder / needs).is_file():
            gguf = f"; {_NO_GGUF}" if any(folder.glob(f"*{_GGUF}")) else ""
            raise ModelError(f"{folder}: has no {needs}; a folder in Hugging Face layout has one{gguf}")
        return folder
    if folder.suffix.lower() == _GGUF:
        raise ModelError(f"{model}: {_NO_GGUF}")
    if folder.is_file():
        raise ModelError(f"{model}: is a file; give the folder in Hugging Face layout that holds {needs}")
    return None


def _check_id(model: str, folder: Path) -> None:
    if not _HUB_ID.fullmatch(model) or model.startswith((".", "/", "~")):
        raise ModelError(f"{model}: is neither a folder nor a hub id `owner/name`{_hint(model, folder)}")


def _shorten_timeouts() -> None:
    """Read by huggingface_hub when it is imported: a dead network must not take its long defaults."""
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", str(_TIMEOUT_SECONDS))


def _with_owner(name: str) -> str | None:
    """The hub id that a name without an owner stands for. Raises ModelError where there are several."""
    _shorten_timeouts()
    from huggingface_hub import constants

    found = candidates(name, Path(constants.HF_HUB_CACHE))
    if len(found) > 1:
        raise ModelError(f"{name}: has no owner; it may be {' or '.join(found)}")
    return found[0] if found else None


def _hint(model: str, folder: Path) -> str:
    """The model of the package, or a folder beside the one that was asked for, whichever has the likest name."""
    try:
        names = [path.name for path in folder.parent.iterdir() if path.is_dir()]
    except OSError:
        return f"; the folder {folder.parent} does not exist" if str(folder.parent) != "." else ""
    close = difflib.get_close_matches(folder.name, names, n=1)
    if difflib.get_close_matches(model, [DEMO_NAME, *close], n=1) == [DEMO_NAME]:
        return f"; did you mean {DEMO_NAME}, the model in the package?"
    if not close:
        return ""
    path = folder.parent / close[0]
    return f"; did you mean {path if path.is_absolute() else f'./{path}'}?"


def _hub_hint(model: str, folder: Path) -> str:
    """Whoever wrote a hub id may have meant a folder."""
    return f"; there is no local folder {model} either" + (_hint(model, folder) if folder.parent.is_dir() else "")


def _fetch(model: str, revision: str | None, folder: Path, needs: str) -> Path:
    _shorten_timeouts()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
    from huggingface_hub.errors import RevisionNotFoundError as NoRevision

    try:
        fetched = Path(snapshot_download(model, revision=revision, allow_patterns=_WANTED))
    except GatedRepoError as error:
        raise ModelError(f"{model}: asks for a token; accept its terms on the hub and set HF_TOKEN") from error
    except NoRevision as error:
        raise ModelError(f"{model}: revision {revision!r} does not exist on the hub") from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"{model}: does not exist on the hub, or needs HF_TOKEN{_hub_hint(model, folder)}") from error
    except LocalEntryNotFoundError as error:
        where = "HF_HUB_OFFLINE is set" if _offline() else "the hub cannot be reached"
        todo = "download it where there is a network and give its folder"
        raise ModelError(
            f"{model}: is not in the local cache, and {where}; {todo}{_hub_hint(model, folder)}"
        ) from error
    except OSError as error:
        raise ModelError(f"{model}: cannot be fetched from the hub: {error}") from error
    if not (fetched / needs).is_file():
        gguf = f"; {_NO_GGUF}" if "gguf" in model.lower() else ""
        raise ModelError(f"{model}: has no {needs} on the hub; a model in Hugging Face layout has one{gguf}")
    return fetched


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)
