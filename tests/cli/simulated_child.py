"""A process of `serve` over the simulated device: `python simulated_child.py engine:SPEED|api: DESCRIPTOR`."""

import sys

from jaxinfer.processes import api, engine
from tests.cli.slow import slow_down
from tests.llm import simulated

if __name__ == "__main__":
    kind, _, speed = sys.argv.pop(1).partition(":")
    simulated.install()
    slow_down(speed)
    (engine if kind == "engine" else api).main()
