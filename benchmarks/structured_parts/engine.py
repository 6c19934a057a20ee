"""An engine's process over the device of device.py:
`python -m benchmarks.structured_parts.engine ADDRESS TOKENIZER ROWS SECONDS`."""

import asyncio
import sys
from pathlib import Path

from benchmarks.structured_parts.device import make_core
from jaxinfer.processes.engine import serve_engine
from jaxinfer.signals import end_process


def main() -> None:
    address, tokenizer, rows, seconds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    core = make_core(tokenizer, rows, seconds)
    end_process(asyncio.run(serve_engine(core, address, on_ready=lambda found: print(found, flush=True))))


if __name__ == "__main__":
    main()
