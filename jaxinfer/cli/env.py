"""`jaxinfer env`: versions, devices, memory, and what can run here."""

import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jaxinfer.cli.flags import parse_flags

PACKAGES = (
    "jaxinfer", "jax", "jaxlib", "flax", "orbax-checkpoint", "safetensors", "tokenizers", "aiohttp", "msgspec", "numpy",
)  # fmt: skip
OPTIONAL = (
    "uvloop", "jax-cuda13-plugin", "jax-cuda12-plugin", "libtpu", "torch", "transformers", "openai", "matplotlib",
)  # fmt: skip
_VARIABLES = ("JAX_", "XLA_", "JAXINFER_", "CUDA_VISIBLE_DEVICES", "TPU_", "HF_HOME", "HF_HUB_OFFLINE")
_SECRETS = ("KEY", "TOKEN")


def run(arguments: Sequence[str]) -> int:
    """Prints the report; `--json` prints it for programs."""
    as_json = parse_flags(_flags, "env", arguments)
    report = gather()
    if as_json:
        json.dump(report, sys.stdout, indent=2)
        print()
    else:
        _print(report)
    return 0


def _flags(json: bool = False) -> bool:
    """Show versions, devices, memory and what can run here.

    Args:
        json: Print JSON.
    """
    return json


def gather() -> dict[str, Any]:
    """Everything that is shown. A device that cannot be used is an entry with its error, not a failure."""
    variables = _variables()  # before jax is imported, which sets some of its own
    devices = _devices()
    return {
        "versions": {name: _version(name) for name in PACKAGES},
        "optional": {name: found for name in OPTIONAL if (found := _version(name)) is not None},
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "host": _host(),
        "devices": devices,
        "attention_backends": {} if devices["platform"] is None else _backends(),
        "compile_cache": _compile_cache(),
        "variables": variables,
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _host() -> dict[str, Any]:
    try:
        usable, total = len(os.sched_getaffinity(0)), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        usable, total = os.cpu_count() or 1, 0
    return {"cores": usable, "memory_bytes": total}


def _devices() -> dict[str, Any]:
    try:
        import jax

        devices = jax.local_devices()
    except Exception as error:  # a driver that is too old, a plugin that does not fit: whatever it is, it is told
        return {"platform": None, "error": f"{type(error).__name__}: {error}", "list": []}
    return {
        "platform": jax.default_backend(),
        "list": [
            {"id": device.id, "kind": device.device_kind, "memory_bytes": (_memory(device) or {}).get("bytes_limit")}
            for device in devices
        ],
    }


def _memory(device: Any) -> dict[str, int] | None:
    try:
        return device.memory_stats()
    except Exception:  # not every platform tells
        return None


def _backends() -> dict[str, str]:
    """Paged attention's implementations, and how each runs here, or why it does not."""
    from jaxinfer_kernels.cpu.loading import library

    from jaxinfer.parallel.mesh import make_mesh
    from jaxinfer.runner.tuning.kernel_backends import BACKENDS, interpreted, obstacle

    mesh = make_mesh()
    runs = {name: "in an interpreter, for tests" if interpreted(name, mesh) else "usable" for name in BACKENDS}
    runs["native"] = f"usable, with {library().instructions} instructions"
    return {name: obstacle(name, mesh) or said for name, said in runs.items()}


def _compile_cache() -> dict[str, Any]:
    try:
        from jaxinfer.runner.platform.compile_cache import default_cache

        folder = default_cache()
    except Exception as error:  # without jax there is no cache either
        return {"folder": None, "error": str(error)}
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else 0
    return {"folder": str(folder), "bytes": size}


def _variables() -> dict[str, str]:
    """Return the environment variables that control JAX and jaxinfer; secrets are only named."""
    return {
        name: "(set)" if any(word in name for word in _SECRETS) else value
        for name, value in sorted(os.environ.items())
        if name.startswith(_VARIABLES)
    }


def _print(report: dict[str, Any]) -> None:
    rows = _rows(report)
    width = max(len(name) for name, _ in rows) + 2
    for name, value in rows:
        print(f"{name:{width}}{value}")


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [(name, found or "MISSING") for name, found in report["versions"].items()]
    rows += list(report["optional"].items())
    host, devices, cache = report["host"], report["devices"], report["compile_cache"]
    rows += [("python", report["python"]), ("system", report["system"])]
    rows.append(("host", f"{host['cores']} cores, {_gibibytes(host['memory_bytes'])}"))
    if devices.get("error"):
        rows.append(("devices", devices["error"]))
    for device in devices["list"]:
        memory = "memory: unknown" if device["memory_bytes"] is None else _gibibytes(device["memory_bytes"])
        told = dict.fromkeys((devices["platform"], device["kind"], memory))  # a CPU is of the kind "cpu"
        rows.append((f"device {device['id']}", ", ".join(told)))
    rows += [(f"attention {name}", said) for name, said in report["attention_backends"].items()]
    kept = "none" if cache["folder"] is None else f"{_home(cache['folder'])}, {cache['bytes'] / 2**20:.1f} MiB"
    rows.append(("compile cache", kept))
    return rows + list(report["variables"].items())


def _gibibytes(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _home(folder: str) -> str:
    path, home = Path(folder), os.path.expanduser("~")
    return str(Path("~") / path.relative_to(home)) if path.is_relative_to(home) else folder
