"""The cases of this package: every kernel on shapes of real models."""

from jaxinfer_kernels.check.attention_cases import attention_cases
from jaxinfer_kernels.check.cases import Case
from jaxinfer_kernels.check.kv_write_cases import kv_write_cases
from jaxinfer_kernels.check.matmul_cases import matmul_cases
from jaxinfer_kernels.check.targets import Target


def kernel_cases(target: Target, everything: bool) -> list[Case]:
    """All kernels for a target, each on the first of its shapes or on all of them."""
    kinds = (attention_cases, kv_write_cases, matmul_cases)
    return [case for make in kinds for case in make(target.platform, everything)]
