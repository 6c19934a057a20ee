"""Options of XLA that programs are compiled with: what is set for each platform and why, and what the user asks for;
and what a process must set before JAX has a device.

They go with each program instead of into XLA_FLAGS, where a name that XLA does not know ends the process: here it is an
error that can be told, and other uses of JAX in the process keep their own. Nothing here imports jax.
"""

import logging
import os
from collections.abc import Mapping
from typing import NamedTuple

from jaxinfer.config import EngineConfig, RunnerConfig
from jaxinfer.errors import ParameterError

Options = Mapping[str, str | bool]
"""Values by name, as `compiler_options` of JAX takes them."""

ENVIRONMENT = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
"""Environment variables in which a user sets the same options for the whole process."""
_MEMORY = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"

log = logging.getLogger(__name__)


class Option(NamedTuple):
    """One option of XLA, and why it is set."""

    name: str
    value: str
    reason: str


_CAPTURED = "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,DYNAMIC_SLICE_FUSION,CONDITIONAL,WHILE"

_GRAPHS = (
    Option(
        "xla_gpu_enable_command_buffer",
        _CAPTURED,
        "loops and branches too: a program becomes one graph. XLA leaves them out; a decode step of Llama-3.1-8B takes "
        "6.7 ms on an H100 with them and 10.9 without, of 256 rows 21 and 29 (benchmarks/results/h100_steps.json)",
    ),
    Option("xla_gpu_graph_min_graph_size", "1", "single operations between them too"),
)

PLATFORM_OPTIONS: dict[str, tuple[Option, ...]] = {
    "gpu": (
        Option(
            "xla_disable_hlo_passes",
            "rematerialization",
            "XLA counts donated KV blocks several times over when it looks for memory to save: where they fill a card, "
            "it made 190 products and norms of a decode step anew for nothing (Qwen3-0.6B compiled for an H200)",
        ),
        *_GRAPHS,
    ),
    "tpu": (
        Option(
            "xla_tpu_control_large_2nd_minor_layout_for_x16",
            "false",
            "a v7x would lay out the weights of a loop in other tiles than those they are kept in, and copy every one "
            "of them before and after each burst of steps (Qwen3-0.6B compiled for a v7x)",
        ),
    ),
    "cpu": (),
}
"""Options that the engine sets by itself. All else is XLA's default: README.md beside this file lists what was
tried."""

CUDA_GRAPHS: dict[str, tuple[Option, ...]] = {
    "auto": (),
    "on": _GRAPHS,
    "off": (Option("xla_gpu_enable_command_buffer", "", "every kernel is launched by itself, as profilers want it"),),
}
"""Options of `cuda_graphs` beyond PLATFORM_OPTIONS, which have graphs, too: `on` takes precedence over the
environment."""


def compiler_options(platform: str, config: RunnerConfig) -> Options:
    """Return the options that programs are compiled with on `platform` (`cpu`, `gpu`, `tpu`).

    The environment takes precedence over what the engine sets by itself; `cuda_graphs` and then `xla_flags` take
    precedence over both. Raises ParameterError if `cuda_graphs` is on and the platform has no CUDA graphs.
    """
    if config.cuda_graphs == "on" and platform != "gpu":
        raise ParameterError("cuda_graphs", f"on needs an NVIDIA GPU; this engine runs on {platform}")
    known = set().union(*(_parsed(os.environ.get(name, "")) for name in ENVIRONMENT))
    own = {option.name: option.value for option in PLATFORM_OPTIONS[platform] if option.name not in known}
    graphs = {option.name: option.value for option in CUDA_GRAPHS[config.cuda_graphs]} if platform == "gpu" else {}
    return {**own, **graphs, **_parsed(config.xla_flags)}


def described(options: Options) -> str:
    """Format options in the order of their names, for the log and as part of a key."""
    return " ".join(f"{name}={options[name]}" for name in sorted(options)) or "XLA's defaults"


def _parsed(text: str) -> dict[str, str | bool]:
    words = (word.removeprefix("--").partition("=") for word in text.split())
    return {name: _value(value) if equals else True for name, equals, value in words}


def _value(text: str) -> str | bool:
    """Truth values as XLA_FLAGS knows them: XLA takes no text for one here."""
    return {"true": True, "false": False}.get(text.lower(), text)


def prepare(config: EngineConfig) -> None:
    """Sets this process's environment for an engine of `config`; what the user set there stays.

    To be called before jax is imported, and without effect once a device was used.
    """
    reserve_memory(config.cache.gpu_memory_utilization)
    quiet_log()
    said = {name: os.environ[name] for name in (*ENVIRONMENT, _MEMORY, _LOG_LEVEL) if os.environ.get(name)}
    log.info("environment of JAX: %s", " ".join(f"{name}={value!r}" for name, value in said.items()))


def reserve_memory(share: float) -> None:
    """Lets JAX's pool on a GPU take `share` of the card; TPUs and CPUs have none. A share set by the user stays."""
    os.environ.setdefault(_MEMORY, f"{share:.4f}")


def quiet_log() -> None:
    """Keeps lines of XLA's own log from standard error, but for fatal ones. XLA writes an alarm about each program that
    compiles for two minutes, and as an error; its real errors are exceptions. A level set by the user stays."""
    os.environ.setdefault(_LOG_LEVEL, "3")
