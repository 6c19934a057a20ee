"""Processes that outlived the one that had started them: the first process of a container has to wait for them."""

import contextlib
import os

import psutil


def reap_adopted(own: set[int]) -> None:
    """Waits for each child that has ended, so that none stays a zombie; not for `own`, for which others wait."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if child.pid not in own and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)
