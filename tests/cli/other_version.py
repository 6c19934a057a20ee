"""`jaxinfer` whose follower says that it is of another version: `python -m tests.cli.other_version serve …`."""

import sys

from jaxinfer.cli import main
from jaxinfer.hosts import facts
from jaxinfer.processes import follower, supervisor

OTHER = "0.0.0-other"

if __name__ == "__main__":
    if sys.argv[1] == "follower:":
        del sys.argv[1]
        facts.__version__ = OTHER
        follower.main()
    supervisor.FOLLOWER = (sys.executable, "-m", "tests.cli.other_version", "follower:")
    sys.exit(main())
