"""An engine's process over the simulated device: `python -m benchmarks.overlap_parts.engine ADDRESS ROWS SECONDS`."""

import asyncio
import sys

from benchmarks.overlap_parts.device import make_core
from jaxinfer.build import DEMO_FOLDER
from jaxinfer.processes.engine import serve_engine
from jaxinfer.signals import end_process
from jaxinfer.text import TextProcessor


def main() -> None:
    address, rows, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    text = TextProcessor.from_folder(DEMO_FOLDER)
    core = make_core(rows, seconds, text.tokenizer.vocab_size, "demo")
    end_process(asyncio.run(serve_engine(core, address, on_ready=lambda found: print(found, flush=True))))


if __name__ == "__main__":
    main()
