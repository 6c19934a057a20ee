"""A picture of host and device over a few decode steps, with overlap and without: the gaps between the device's steps.

The demo model on this machine's CPU, 32 requests. On a CPU host and device share cores, so that what overlap hides also
slows the device a little.

    python benchmarks/timeline.py [--svg FILE] [--json FILE]
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.overlap_parts.recorder import Timeline, record
from benchmarks.overlap_parts.timeline_svg import draw
from benchmarks.report import write_json
from jaxinfer import LLM

ROWS, STEPS, SHOWN = 32, 200, 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--svg", metavar="FILE", help="draw the picture there")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    found: dict[str, Timeline] = {}
    llm = LLM("demo", max_num_seqs=ROWS)
    for name, ahead in (("overlap off", 0), ("overlap on", 1)):
        llm.engine.steps_ahead = ahead
        found[name] = record(llm, ROWS, STEPS)
        print(f"{name}: {found[name].described()}")
    llm.close()
    if options.svg:
        title = f"Demo model on a CPU, {ROWS} requests, {SHOWN} decode steps"
        Path(options.svg).write_text(draw({name: line.middle(SHOWN) for name, line in found.items()}, title))
    write_json(options.json, {"rows": ROWS, **{name: line.figures() for name, line in found.items()}})
    off, on = found["overlap off"].idle_share, found["overlap on"].idle_share
    print(f"idle_share of the device {off:.1%} without overlap, {on:.1%} with it")


if __name__ == "__main__":
    main()
