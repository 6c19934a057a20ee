"""The command line before the simulated device: `python serve_simulated.py serve FOLDER …`."""

import sys

from jaxinfer.cli import main
from jaxinfer.processes import supervisor
from tests.llm import simulated


def use_simulated(speed: str = "") -> None:
    """Puts the simulated device in the place of the real one, here and in the processes of `serve`."""
    simulated.install()
    command = (sys.executable, "-m", "tests.cli.simulated_child")
    supervisor.ENGINE = (*command, f"engine:{speed}")
    supervisor.API = (*command, "api:")


if __name__ == "__main__":
    use_simulated()
    sys.exit(main())
