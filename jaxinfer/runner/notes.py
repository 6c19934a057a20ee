"""Notes: what a start has measured, in files beside the compile cache, so that the next need not."""

import contextlib
import json
from pathlib import Path
from typing import Any


def read_note(file: Path | None, key: str) -> Any:
    """What a note says under `key`; None where there is none that can be read."""
    if file is None:
        return None
    try:
        return json.loads(file.read_text())[key]
    except (ValueError, KeyError, TypeError, OSError):
        return None


def write_note(file: Path | None, values: dict[str, Any]) -> None:
    """Writes a note; without effect where the folder takes none."""
    if file is not None:
        with contextlib.suppress(OSError):
            file.write_text(json.dumps(values, indent=1))
