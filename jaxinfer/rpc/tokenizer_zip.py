"""A tokenizer's files as one zip archive, for gateways that tokenise themselves."""

import io
import zipfile
from pathlib import Path

from jaxinfer.folder_files import is_there, read_bytes

_NAMES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json",
    "generation_config.json", "vocab.json", "merges.txt", "chat_template.json", "processor_config.json",
)  # fmt: skip
_PATTERNS = ("*.jinja", "additional_chat_templates/*.jinja", "*.model", "*.tiktoken")


def tokenizer_zip(folder: Path) -> bytes:
    """The files of a model folder that its text side is made of; equal files give equal bytes, wherever they lie."""
    names = {name for name in _NAMES if is_there(folder / name)}
    names |= {file.relative_to(folder).as_posix() for pattern in _PATTERNS for file in folder.glob(pattern)}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in sorted(names):
            # Without a file's date, which differs between machines.
            archive.writestr(zipfile.ZipInfo(name), read_bytes(folder / name), zipfile.ZIP_DEFLATED)
    return packed.getvalue()
