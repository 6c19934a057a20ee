"""The C library's heap: the bytes in use, and the rest given back. The memory of the process tells less of either."""

import ctypes
import os
from functools import cache
from typing import Any

_PAGE = os.sysconf("SC_PAGE_SIZE")


class _MallInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
                     "keepcost")
    )  # fmt: skip


def allocated() -> int:
    """Return the bytes in use of all arenas, and of large blocks beside them; the process's memory where the C library
    does not tell."""
    ask = _mallinfo()
    if ask is None:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * _PAGE
    found = ask()
    return found.uordblks + found.hblkhd


def release() -> None:
    """Give free memory back to the system, where the C library can: compilers leave a gigabyte of it or two."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@cache
def _mallinfo() -> Any:
    found = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if found is not None:
        found.restype = _MallInfo
    return found
