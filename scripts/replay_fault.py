"""Replay what a device was asked before a step failed, from a file that `--fault-folder` left.

    python scripts/replay_fault.py FILE [MODEL and flags, as `jaxinfer serve` was given]

The engine must be built as it was: the same model, mesh and sizes. Tells at which of the calls which error came, there
and here; exits with 1 if their places or kinds differ. Where calls are missing in front, as a long time has passed
since the start, the fault may be another. What several hosts have recorded is replayed on one.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jaxinfer.build import build_engine
from jaxinfer.cli.settings import parse_settings
from jaxinfer.engine.device.recording import Fault, read_recording, replay
from jaxinfer.serving.config import ServerConfig
from jaxinfer.version import __version__


def main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    recording = read_recording(Path(arguments[0]))
    if recording.version != __version__:
        print(f"recorded by jaxinfer {recording.version}; this is {__version__}", file=sys.stderr)
    config, _ = parse_settings("replay_fault", {"server": ServerConfig()}, arguments[1:])
    core = build_engine(replace(config, runner=replace(config.runner, fault_folder=None))).core
    try:
        if repr(core.runner.shapes) != recording.shapes:
            print(f"recorded with {recording.shapes}\nbuilt with {core.runner.shapes}", file=sys.stderr)
            return 2
        fault = replay(core.runner, recording)
    finally:
        core.close()
    missing = f", {recording.dropped} before them missing" if recording.dropped else ""
    print(f"recorded: {recording.fault.error} at call {recording.fault.entry} of {len(recording.entries)}{missing}")
    print("replayed: " + ("no error" if fault is None else f"{fault.error} at call {fault.entry}"))
    return int(fault is None or _place(fault) != _place(recording.fault))


def _place(fault: Fault) -> tuple[int, str]:
    """Return the number of the call and the type of the error, whose text may have sizes and times."""
    return fault.entry, fault.error.partition(":")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
