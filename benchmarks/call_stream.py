"""The host's cost of sending a step's calls to followers: encoding, digest and framing, without a network.

Steps are those of an engine of 256 slots over a simulated device: decode steps of 1, 64 and 256 rows, and mixed steps
of 512 and 2,048 prompt tokens. A step takes two messages, of its forward pass and of its sampling. Where rows are
constrained another message has their masks, a bit a token of a vocabulary of 151,936 each.

    python benchmarks/call_stream.py [--json FILE] [--turns N]
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b, sha256
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from zlib import adler32, crc32

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.report import write_json
from jaxinfer.config import SchedulerConfig
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.device.call_stream import CallReader, CallWriter
from jaxinfer.engine.device.calls import Call, SetMasks, Start, encode
from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.engine.step.packed import PackedStep
from jaxinfer.engine.step.packing import Packer
from jaxinfer.engine.step.plan import StepKind
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.engine.types import GenerateRequest, ModelInfo
from jaxinfer.sampling import SamplingParams

DECODE_ROWS = (1, 64, 256)
PROMPT_TOKENS = (512, 2048)
MASK_ROWS = (8, 64)
SLOTS, CONTEXT, BLOCK, VOCABULARY = 256, 8192, 16, 151_936
BLOCKS = 1 + SLOTS * CONTEXT // BLOCK
SHAPES = EngineShapes(SLOTS, 2048, SLOTS, CONTEXT, BLOCK, (KVGroup(None, BLOCKS),), VOCABULARY)
CALLS = 1000
"""Steps of a turn."""
DIGESTS: dict[str, Callable[[bytes], Any]] = {
    "crc32": crc32,
    "adler32": adler32,
    "sha256": lambda data: sha256(data).digest(),
    "blake2b": lambda data: blake2b(data, digest_size=8).digest(),
}


class Row(NamedTuple):
    """Cost of one step's messages: µs to write and to read them, each the median of turns, the least and the most;
    their bytes."""

    step: str
    write_us: tuple[float, float, float]
    read_us: tuple[float, float, float]
    bytes: int


class KeptSteps(SimulatedRunner):
    """Keeps the last step that it was given."""

    last: PackedStep

    def begin(self, step: PackedStep) -> float:
        self.last = step
        return super().begin(step)


def make_step(kind: StepKind, size: int) -> PackedStep:
    """A decode step of `size` rows, or a mixed one of a prompt of `size` tokens."""
    runner = KeptSteps(SHAPES, draws=False)
    info = ModelInfo("simulated", CONTEXT, VOCABULARY, SLOTS, BLOCK, BLOCKS)
    core = EngineCore(runner, info, scheduler=SchedulerConfig(max_num_seqs=SLOTS), eos_ids=(VOCABULARY - 1,))
    rows, length = (size, 100) if kind is StepKind.DECODE else (1, size)
    for row in range(rows):
        prompt = [(row * 131 + i) % 50_000 + 1 for i in range(length)]
        core.add_request(GenerateRequest(str(row), prompt, SamplingParams(max_tokens=None, temperature=0.0, seed=0)))
    core.step()
    while kind is StepKind.DECODE and (runner.last.kind, runner.last.num_rows) != (kind, rows):
        core.step()
    return runner.last


def microseconds(call: Callable[[], Any], turns: int) -> tuple[float, float, float]:
    """Median, least and most of turns, of one call each."""
    times = []
    for _ in range(turns):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - start) / CALLS * 1e6)
    return round(median(times), 2), round(min(times), 2), round(max(times), 2)


def time_calls(name: str, own: Sequence[Call], turns: int) -> Row:
    """Writes and reads the messages of some calls over and over."""
    writer, first = CallWriter(), CallWriter()
    messages = [first.write(call) for call in own]

    def write() -> None:
        for call in own:
            writer.write(call)

    def read() -> None:
        reader = CallReader()
        for message in messages:
            reader.read(message)

    return Row(name, microseconds(write, turns), microseconds(read, turns), sum(map(len, messages)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    parser.add_argument("--turns", type=int, default=9, help=f"turns of {CALLS} steps each")
    options = parser.parse_args()
    if options.turns < 1:
        parser.error("--turns must be at least 1")
    steps = [(f"decode, {rows} rows", make_step(StepKind.DECODE, rows)) for rows in DECODE_ROWS]
    steps += [(f"mixed, {tokens} tokens", make_step(StepKind.MIXED, tokens)) for tokens in PROMPT_TOKENS]
    timed: list[tuple[str, Sequence[Call]]] = [(name, (Start(step),)) for name, step in steps]
    timed += [(f"masks, {rows} rows", (SetMasks(Packer(SHAPES).no_masks(rows)),)) for rows in MASK_ROWS]
    rows = [time_calls(name, own, options.turns) for name, own in timed]
    print(f"{'step':>20} {'write µs':>9} {'read µs':>9} {'bytes':>8}")
    for row in rows:
        print(f"{row.step:>20} {row.write_us[0]:9.2f} {row.read_us[0]:9.2f} {row.bytes:8}")
    data = encode(Start(steps[len(DECODE_ROWS) - 1][1]))
    digests = {
        name: microseconds(lambda digest=digest: digest(data), options.turns) for name, digest in DIGESTS.items()
    }
    print(f"digests of {len(data)} bytes, µs:", ", ".join(f"{name} {times[0]}" for name, times in digests.items()))
    found = {"rows": [row._asdict() for row in rows], "digests_us": {"bytes": len(data), **digests}}
    write_json(options.json, found)
    print(f"messages of a decode step of {DECODE_ROWS[-1]} rows: {rows[len(DECODE_ROWS) - 1].write_us[0]} µs (median)")


if __name__ == "__main__":
    main()
