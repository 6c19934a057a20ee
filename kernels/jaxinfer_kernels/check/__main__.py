"""`python -m jaxinfer_kernels.check`: every kernel, for every target."""

import sys

from jaxinfer_kernels.check.command import main
from jaxinfer_kernels.check.kernels import kernel_cases

if __name__ == "__main__":
    sys.exit(main(kernel_cases, [sys.executable, "-m", "jaxinfer_kernels.check"], description=__doc__ or ""))
