"""A tokenizer's files as one zip archive, for gateways that tokenise themselves."""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

from jaxinfer.folder_files import is_there, read_bytes

_NAMES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json",
    "generation_config.json", "vocab.json", "merges.txt", "processor_config.json",
)  # fmt: skip
_PATTERNS = ("tokenizer.*.json", "*.model", "*.tiktoken")


def tokenizer_zip(folder: Path, templates: Mapping[str, str]) -> bytes:
    """Pack what the text side of a model is made of; equal contents give equal bytes, wherever they lie.

    templates: the chat templates by name that the server renders, which need not be those of the folder.
    """
    names = {name for name in _NAMES if is_there(folder / name)}
    names |= {file.name for pattern in _PATTERNS for file in folder.glob(pattern)}
    files = {name: read_bytes(folder / name) for name in names}
    files |= {_template_file(name): text.encode("utf-8", "replace") for name, text in templates.items()}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in sorted(files.items()):
            # Without a file's date, which differs between machines.
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _template_file(name: str) -> str:
    return "chat_template.jinja" if name == "default" else f"additional_chat_templates/{name}.jinja"
