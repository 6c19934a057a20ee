"""The command line before the simulated device: `python serve_simulated.py serve FOLDER …`."""

import sys

from jaxinfer.cli import main
from tests.llm import simulated

if __name__ == "__main__":
    simulated.install()
    sys.exit(main())
