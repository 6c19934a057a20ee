"""The parts of the suite, in the order of their worth."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_BUFFERS = "--xla_gpu_enable_command_buffer="
NO_BUFFERS = _BUFFERS
STRAIGHT_IN_BUFFERS = _BUFFERS + "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,DYNAMIC_SLICE_FUSION"
"""Flag with XLA's own default types of command buffers: no loops, no branches."""


@dataclass(frozen=True)
class Part:
    """One process. module: in benchmarks.device, with a function `measure`. seconds: its limit on a GPU.

    options: what `measure` reads. flags: added to XLA_FLAGS. needs: packages without which it is left out. not_on:
    platforms that it cannot run on, with the reason.
    """

    name: str
    module: str
    seconds: int
    what: str
    options: Mapping[str, Any] = field(default_factory=dict)
    flags: str = ""
    needs: tuple[str, ...] = ()
    not_on: Mapping[str, str] = field(default_factory=dict)


def _steps(
    name: str, size: str, seconds: int, what: str, layout: str = "unrolled", prefill: bool = True, flags: str = ""
):
    options = {"size": size, "layout": layout, "prefill": prefill}
    gpu_only: dict[str, str] = dict.fromkeys(("tpu", "cpu"), "its flags are for a GPU") if flags else {}
    return Part(name, "steps", seconds, what, options, flags, not_on=gpu_only)


PARTS: tuple[Part, ...] = (
    Part("ceilings", "ceilings", 60, "what the device copies and multiplies"),
    Part("starts", "starts", 200, "from the start of the server until it is ready, cold and warm, by part"),
    Part("serving", "serving", 170, "the workload through LLM"),
    Part("idle", "idle", 100, "device idle between steps; a warm start"),
    Part("server", "server", 110, "the server under load: processes, HTTP, a stream for every slot"),
    Part("kernel-times", "kernel_times", 110, "steps of the large model by kernel", {"size": "large"}),
    _steps("steps-large", "large", 110, "steps of the large model"),
    _steps("steps-small", "small", 90, "steps of the small model"),
    Part("drafts-model", "drafts", 150, "the large model with a draft model", {"method": "draft_model"}),
    Part("drafts-head", "drafts", 110, "the large model with an EAGLE-3 head", {"method": "eagle3"}),
    Part("right", "right", 130, "kernels against float64: tests/kernels on the device", needs=("pytest", "hypothesis")),
    Part("kernels", "kernels", 150, "attention, KV write and matmul kernels, and what they are compared with"),
    Part(
        "transformers",
        "transformers_peer",
        110,
        "the workload through transformers",
        needs=("torch", "transformers"),
        not_on={"tpu": "transformers is compared on GPUs and CPUs alone"},
    ),
    _steps("straight-small", "small", 60, "small, graphs of straight runs", prefill=False, flags=STRAIGHT_IN_BUFFERS),
    _steps("nobuffers-small", "small", 60, "small, no CUDA graphs", prefill=False, flags=NO_BUFFERS),
    _steps("scan-small", "small", 60, "small, layers under scan", layout="stacked", prefill=False),
    _steps("scan-large", "large", 80, "large, layers under scan", layout="stacked", prefill=False),
    Part(
        "vllm",
        "vllm_peer",
        120,
        "the workload through vLLM",
        needs=("vllm",),
        not_on={"tpu": "vLLM is compared on GPUs alone; its TPU build is another package, which was not tried here"},
    ),
    Part("calibration", "calibration", 150, "a file for `jaxinfer plan --calibration`"),
    _steps("straight-large", "large", 80, "large, graphs of straight runs", prefill=False, flags=STRAIGHT_IN_BUFFERS),
    _steps("nobuffers-large", "large", 80, "large, no CUDA graphs", prefill=False, flags=NO_BUFFERS),
)
ENVIRONMENT = Part("environment", "environment", 60, "what is installed")
BY_NAME = {part.name: part for part in (ENVIRONMENT, *PARTS)}
