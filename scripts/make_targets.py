"""Writes configs/targets: what kernels and programs are compiled for, on a machine that has none of it.

    .venv/bin/python scripts/make_targets.py [--out DIR]

A file a target, NAME.yaml, with figures of one JAX device: that is half of a v7x chip, and both cores of a v5p. For a
GPU there is NAME.txtpb as well, the description from which XLA compiles (GpuTargetConfigProto). The files are
committed; the script runs again when a target is added or a figure is corrected.

Sources:
  TPU figures  jax/_src/tpu_info.py of jax 0.11.2, a core each, times the cores of a device
  H200         openxla/xla, xla/backends/gpu/target_config/specs/h200.txtpb: sizes and limits;
               NVIDIA's H200 datasheet (SXM): memory bandwidth and dense matmul rates
"""

import argparse
from pathlib import Path
from typing import Any

import yaml

OUT = Path(__file__).resolve().parents[1] / "configs" / "targets"

_TPU_SOURCE = "jax/_src/tpu_info.py of jax 0.11.2"
_H200_SOURCE = "openxla/xla, target_config/specs/h200.txtpb, and NVIDIA's H200 datasheet"
_MIB = 1 << 20


def _tpu(
    device: str,
    topology: str,
    accelerator: str,
    *,
    cores: int,
    hbm: int,
    bandwidth: float,
    host: Any = None,
    **rates: Any,
):
    """host: topology and accelerator type of a whole host, where meshes are compiled for it."""
    vmem = rates.pop("vmem")
    return {
        "platform": "tpu",
        "device": device,
        "topology": topology,
        "accelerator_type": accelerator,
        **({"host_topology": host[0], "host_accelerator_type": host[1]} if host else {}),
        "source": _TPU_SOURCE,
        "cores": cores,
        "hbm_bytes": hbm,
        "hbm_bytes_per_second": int(bandwidth),
        **{f"{name}_per_second": int(rate) for name, rate in rates.items()},
        "vmem_bytes": int(vmem) * _MIB,
        "smem_bytes": _MIB,
    }


TARGETS: dict[str, dict[str, Any]] = {
    "v5e": _tpu(
        "TPU v5e", "v5e:2x2", "v5litepod-4", host=("v5e:2x4", "v5litepod-8"),
        cores=1, hbm=17_200_000_000, bandwidth=8.20e11, bf16_ops=1.97e14, int8_ops=3.94e14, vmem=128,
    ),
    "v5p": _tpu(
        "TPU v5p", "v5p:2x2x1", "v5p-8",
        cores=2, hbm=103_000_000_000, bandwidth=2.46e12, bf16_ops=4.59e14, int8_ops=9.18e14, vmem=64,
    ),
    "v6e": _tpu(
        "TPU v6e", "v6e:2x2", "v6e-4", host=("v6e:2x4", "v6e-8"),
        cores=1, hbm=34_400_000_000, bandwidth=1.64e12, bf16_ops=9.20e14, int8_ops=1.84e15, fp8_ops=9.20e14, vmem=128,
    ),
    "v7x": _tpu(
        "half a TPU v7x", "tpu7x:2x2x1", "tpu7x-8", host=("tpu7x:2x2x1", "tpu7x-8"),
        cores=1, hbm=103_000_000_000, bandwidth=3.70e12, bf16_ops=1.155e15, fp8_ops=2.30e15, vmem=64,
    ),
    "h200": {
        "platform": "cuda",
        "device": "NVIDIA H200",
        "topology": "1x1x1",
        "host_topology": "1x1x8",
        "source": _H200_SOURCE,
        "cores": 132,
        "hbm_bytes": 151_397_597_184,
        "hbm_bytes_per_second": 4_800_000_000_000,
        "bf16_ops_per_second": 989_000_000_000_000,
        "int8_ops_per_second": 1_979_000_000_000_000,
        "fp8_ops_per_second": 1_979_000_000_000_000,
        "smem_bytes": 232_448,
    },
}  # fmt: skip

# GpuTargetConfigProto. The driver and library versions are those of CUDA 13, with which JAX's plug-in is built.
DESCRIPTIONS: dict[str, dict[str, Any]] = {
    "h200": {
        "gpu_device_info": {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "shared_memory_per_block": 49152,
            "shared_memory_per_core": 233472,
            "shared_memory_per_block_optin": 232448,
            "threads_per_core_limit": 2048,
            "core_count": 132,
            "fpus_per_core": 128,
            "block_dim_limit_x": 2147483647,
            "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535,
            "thread_dim_limit_x": 1024,
            "thread_dim_limit_y": 1024,
            "thread_dim_limit_z": 64,
            "registers_per_core_limit": 65536,
            "registers_per_block_limit": 65536,
            "memory_bandwidth": 4800000000000,
            "l2_cache_size": 52428800,
            "clock_rate_ghz": 1.98,
            "device_memory_size": 151397597184,
            "device_address_bits": 64,
            "cuda_compute_capability": {"major": 9, "feature_extension": "ACCELERATED_FEATURES"},
            "device_vendor": '"NVIDIA Corporation"',
            "platform_version": '"Compute Capability 9.0a"',
            "name": '"NVIDIA H200"',
            "driver_version": '"13.0.0"',
            "runtime_version": '"13.0.0"',
            "compile_time_toolkit_version": '"13.0.0"',
            "dnn_version": '"9.12.0"',
        },
        "platform_name": '"CUDA"',
        "dnn_version_info": {"major": 9, "minor": 12, "patch": 0},
        "device_description_str": '"NVIDIA H200"',
    }
}


def text_proto(fields: dict[str, Any], depth: int = 0) -> str:
    """A protobuf message as text; strings are given with their quotation marks, so that enums can stand without."""
    lines = []
    for name, value in fields.items():
        inner = f"{name} {{\n{text_proto(value, depth + 2)}{' ' * depth}}}" if isinstance(value, dict) else None
        lines.append(f"{' ' * depth}{inner or f'{name}: {value}'}\n")
    return "".join(lines)


def write_targets(folder: Path) -> None:
    """Writes all files to `folder`, which is made where it is absent."""
    folder.mkdir(parents=True, exist_ok=True)
    head = "# Made by scripts/make_targets.py, which names its sources.\n"
    for name, target in TARGETS.items():
        (folder / f"{name}.yaml").write_text(head + yaml.safe_dump(target, sort_keys=False))
    for name, description in DESCRIPTIONS.items():
        (folder / f"{name}.txtpb").write_text(head + text_proto(description))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write to")
    write_targets(parser.parse_args().out)
