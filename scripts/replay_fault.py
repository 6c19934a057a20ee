"""Replay what a device was asked before a step failed, from a file that `--fault-folder` left.

    python scripts/replay_fault.py FILE [MODEL and flags, as `jaxinfer serve` was given]

The engine must be built as it was: the same model, mesh and sizes. Tells at which of the calls which error came, there
and here; exits with 1 if they differ.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from jaxinfer.build import build_engine
from jaxinfer.cli.settings import parse_settings
from jaxinfer.engine.device.recording import read_recording, replay
from jaxinfer.version import __version__


def main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    recording = read_recording(Path(arguments[0]))
    if recording.version != __version__:
        print(f"recorded by jaxinfer {recording.version}; this is {__version__}", file=sys.stderr)
    config, _ = parse_settings("replay_fault", {}, arguments[1:])
    core = build_engine(config).core
    try:
        fault = replay(core.runner, recording)
    finally:
        core.close()
    print(f"recorded: {recording.fault.error} at call {recording.fault.entry} of {len(recording.entries)}")
    print("replayed: " + ("no error" if fault is None else f"{fault.error} at call {fault.entry}"))
    return int(fault != recording.fault)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
