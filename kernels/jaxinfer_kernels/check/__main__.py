"""`python -m jaxinfer_kernels.check`: every kernel, for every target."""

import sys

from jaxinfer_kernels.check.command import RECORDS, main
from jaxinfer_kernels.check.kernels import kernel_cases

if __name__ == "__main__":
    again = [sys.executable, "-m", "jaxinfer_kernels.check"]
    sys.exit(main(kernel_cases, again, description=__doc__ or "", record=RECORDS / "kernels.json"))
