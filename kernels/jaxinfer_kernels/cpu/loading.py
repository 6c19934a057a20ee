"""The library of native kernels: found, loaded, and known to XLA by the names of its calls.

JAXINFER_NATIVE_LIBRARY, if set, is the file to load in place of the one that `build.py` builds. `none`, or another name
of no file, turns native kernels off.
"""

import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jax

from jaxinfer_kernels.cpu import build

_CALLS = ("jaxinfer_product", "jaxinfer_attention", "jaxinfer_untouched")


class Library(NamedTuple):
    """The library. instructions: the set that its kernels use here. reason: why there is none, if so."""

    instructions: str = ""
    reason: str = ""


@cache
def library() -> Library:
    """Return the library, whose calls XLA knows from then on."""
    named = os.environ.get("JAXINFER_NATIVE_LIBRARY")
    if named == "none":
        return Library(reason="native kernels are off: JAXINFER_NATIVE_LIBRARY=none")
    file = Path(named or build.LIBRARY).resolve()
    if named and not file.is_file():
        return Library(reason=f"JAXINFER_NATIVE_LIBRARY={named} is no file, so native kernels are off")
    if not named and (how := build.staleness()):
        remedy = f"run `{sys.executable} {build.__file__}`, with a C++ compiler"
        return Library(reason=f"the native kernels are {how}: {remedy}")
    try:
        loaded = ctypes.CDLL(str(file))
        calls = {name: getattr(loaded, name) for name in _CALLS}
    except (OSError, AttributeError) as error:
        return Library(reason=f"the native kernels cannot be loaded: {error}")
    for name, call in calls.items():
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(call), platform="cpu")
    loaded.jaxinfer_instructions.restype = ctypes.c_char_p
    return Library(loaded.jaxinfer_instructions().decode())
