"""`jaxinfer models`: the architectures that can be served, the formats that are read, what each was checked against."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from jaxinfer.cli.flags import parse_flags
from jaxinfer.errors import ModelError
from jaxinfer.model_config.registry import ARCHITECTURES, find_architecture, known_architectures
from jaxinfer.model_config.text_part import TEXT_PARTS
from jaxinfer.text.answer.forms import unparsed

FORMATS = ("safetensors in float32, float16 and bfloat16",)


def run(arguments: Sequence[str]) -> int:
    """Prints the list; `--json` prints it for programs."""
    as_json = parse_flags(_flags, "models", arguments)
    rows = [_row(name) for name in known_architectures()]
    if as_json:
        json.dump({"formats": FORMATS, "architectures": rows}, sys.stdout, indent=2)
        print()
    else:
        _print(rows)
    return 0


def _flags(json: bool = False) -> bool:
    """List the architectures that can be served.

    Args:
        json: Print JSON.
    """
    return json


def _row(name: str) -> dict[str, Any]:
    if name in TEXT_PARTS:
        return {"architecture": name, "checked_against": "transformers", "note": "its text part"}
    plugin = "" if name in ARCHITECTURES else "from a plugin"
    try:
        checked_against = find_architecture(name).checked_against
    except ModelError:
        return {"architecture": name, "checked_against": "", "note": f"{plugin}, which cannot be loaded"}
    note = "; ".join(note for note in (unparsed(name), plugin) if note)
    return {"architecture": name, "checked_against": checked_against, "note": note}


def _print(rows: list[dict[str, Any]]) -> None:
    widths = [max(len(row[name]) for row in rows) for name in ("architecture", "checked_against")]
    print(f"Weights: {', '.join(FORMATS)}.\n")
    head = {"architecture": "architecture", "checked_against": "checked against", "note": "note"}
    for row in [head, *rows]:
        line = f"{row['architecture']:{widths[0]}}  {row['checked_against']:{widths[1]}}  {row['note']}"
        print(line.rstrip())
