"""Wait for orphans as the first process of a container has to: `python -m tests.processes.adopting`, which adopts those
of its own descendants."""

import ctypes
import subprocess
import time

import psutil

from jaxinfer.processes.adopted import reap_adopted

PR_SET_CHILD_SUBREAPER = 36


def zombies() -> set[int]:
    return {child.pid for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE}


def main() -> None:
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    own = subprocess.Popen(["true"])
    subprocess.run(["sh", "-c", "sleep 0.2 & exit 0"], check=True)
    while len(zombies()) < 2:
        time.sleep(0.01)
    reap_adopted({own.pid})
    assert zombies() == {own.pid}, zombies()
    assert own.wait() == 0


if __name__ == "__main__":
    main()
