"""Chat templates: where a model's folder keeps them, and those that --chat-template names."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxinfer.errors import ModelError, ParameterError, quoted
from jaxinfer.folder_files import MAX_TEMPLATE_BYTES, is_there, read_object, read_text

_BUILT_IN = Path(__file__).with_name("templates")
_FLAG = "chat_template"
_NAME = re.compile(r"\w[\w.-]*")
"""Names of templates, which may become names of files."""


def load_chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the templates of a model's folder by name, `default` and perhaps `tool_use`; empty where it has none.

    The first of these places that has any counts: chat_template.jinja with additional_chat_templates/NAME.jinja;
    `chat_template` of processor_config.json, chat_template.json and tokenizer_config.json, which is a text, or names
    with their templates. config: tokenizer_config.json. Raises ModelError.
    """
    found = _jinja_files(folder)
    for name in ("processor_config.json", "chat_template.json"):
        if not found and is_there(folder / name):
            found = _declared(folder / name, read_object(folder / name))
    return found or _declared(folder / "tokenizer_config.json", config)


def named_chat_templates(asked: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return what --chat-template asks for: a file, a template of the model by its name, or a built-in one.

    own: of `load_chat_templates`. Raises ParameterError.
    """
    if asked in own:
        return {"default": own[asked]}
    if asked in built_in_templates():
        return {"default": (_BUILT_IN / f"{asked}.jinja").read_text(encoding="utf-8")}
    file = Path(asked).expanduser()
    try:
        if file.is_file() and file.stat().st_size <= MAX_TEMPLATE_BYTES:
            return {"default": file.read_text(encoding="utf-8").replace("\r\n", "\n")}
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(_FLAG, f"{asked}: cannot be read: {error}") from None
    names = ", ".join(sorted({*own, *built_in_templates()}))
    message = f"{asked!r} must be a file of at most {MAX_TEMPLATE_BYTES} bytes, or one of {names}"
    raise ParameterError(_FLAG, message)


def built_in_templates() -> list[str]:
    """Return the names of the templates in the package."""
    return sorted(file.stem for file in _BUILT_IN.glob("*.jinja"))


def _jinja_files(folder: Path) -> dict[str, str]:
    more = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    files = {file.stem: file for file in more}
    if is_there(folder / "chat_template.jinja"):
        files["default"] = folder / "chat_template.jinja"
    return {name: read_text(file, most=MAX_TEMPLATE_BYTES) for name, file in files.items()}


def _declared(file: Path, fields: Mapping[str, Any]) -> dict[str, str]:
    value = fields.get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    try:
        named = value.items() if isinstance(value, dict) else ((entry["name"], entry["template"]) for entry in value)
        found = dict(named)
    except (TypeError, KeyError, ValueError):
        found = {}
    if not found or not all(isinstance(text, str) for pair in found.items() for text in pair):
        raise ModelError(f"{file}: chat_template must be a text, or a list of name and template")
    for name in found:
        if not _NAME.fullmatch(name):
            raise ModelError(f"{file}: chat_template has {quoted(name)}, which must be letters, digits, dashes or dots")
    return found
