"""Texts of flags as one flowing text each: tyro keeps the breaks of lines that are indented, as a docstring's are."""

from typing import Any

import docstring_parser


def flowing_doc(described: Any) -> str:
    """Return the docstring of a function or a dataclass with each parameter's text on one line.

    A field's text is the docstring that follows it.
    """
    doc = docstring_parser.parse_from_object(described)
    texts = [(each.arg_name, " ".join((each.description or "").split())) for each in doc.params]
    told = "\n".join(f"    {name}: {text}" for name, text in texts)
    return f"{doc.short_description or ''}\n\nArgs:\n{told}\n"
