"""Convert to int8 and print a line as each part begins: `python -m tests.convert.convert_by_parts SOURCE OUT FORM`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxinfer.convert import safetensors_folder
from jaxinfer.convert.work_folder import WorkFolder
from tests.convert.conversions import converted


def main(source: str, out: str, to: Any) -> None:
    safetensors_folder.MOST_BYTES = 1_500_000  # many files
    add = WorkFolder.add

    def told(self: WorkFolder, name: str, write: Callable[..., Any]) -> None:
        print("part", flush=True)
        add(self, name, write)

    WorkFolder.add = told
    converted(Path(source), Path(out), to, quantization="int8")


if __name__ == "__main__":
    main(*sys.argv[1:])
