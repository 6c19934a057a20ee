"""Traces and lowers every step program of Llama-3.1-8B for an H200, on a machine that has none, and fails if one takes
too long: `.venv/bin/python scripts/check_lowering.py`, with the extra compile-gpu.

Mosaic GPU infers the layouts of registers and memory by a search. A new JAX may search where the last one did not, for
hours. Seconds are those of the process on its CPUs, which other work on the machine does not change.
"""

import os
import signal
import sys
import time
from types import FrameType
from typing import NoReturn

from jaxinfer_kernels.check.targets import FOLDER, Target, read_target

_PROGRAM_SECONDS = 15.0
"""CPU seconds of one program, five times what the longest took: 3.0 with jax 0.12.0.1, 3.3 with 0.11.2."""
_TOTAL_SECONDS = 270.0
"""CPU seconds of all programs, five times what they took: 53 with jax 0.12.0.1, 61 with 0.11.2."""


def check(target: Target) -> int:
    """Lower all programs and print their times. Returns the exit status."""
    import jax
    from check_programs import every_name
    from jaxinfer_kernels.check.cases import Case
    from program_cases import model_cases
    from program_models import DENSE

    def lower(case: Case) -> float:
        start = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, _PROGRAM_SECONDS)
        case.lower(devices)
        signal.setitimer(signal.ITIMER_PROF, 0)
        return time.process_time() - start

    devices, total = target.devices(), 0.0
    (model,) = (model for model in DENSE if model.name == "Llama-3.1-8B")
    for case in model_cases(target, model, None, "mosaic_gpu", every_name):
        try:
            taken = lower(case)
        except TimeoutError:
            print(f"{case.program} is not lowered in {_PROGRAM_SECONDS:.0f} CPU s with jax {jax.__version__}")
            return 1
        print(f"{case.program:16} {taken:5.1f} CPU s", flush=True)
        total += taken
    print(f"{total:.0f} CPU s in all with jax {jax.__version__}; {_TOTAL_SECONDS:.0f} are allowed")
    return 1 if total > _TOTAL_SECONDS else 0


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise TimeoutError


def main() -> int:
    target = read_target(FOLDER, "h200")
    variables = target.variables()
    if any(os.environ.get(name) != value for name, value in variables.items()):  # JAX reads them when it is imported
        os.execve(sys.executable, [sys.executable, __file__], os.environ | variables)
    signal.signal(signal.SIGPROF, _stop)
    return check(target)


if __name__ == "__main__":
    sys.exit(main())
