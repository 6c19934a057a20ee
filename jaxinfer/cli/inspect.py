"""`jaxinfer inspect`: what a model is made of, and what it takes of this machine. Reads no weights."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxinfer.cli.flags import parse_flags
from jaxinfer.config import DType, EngineConfig, KVCacheDType, ModelConfig, Quantization
from jaxinfer.errors import ModelError
from jaxinfer.quantization.kv import KV_CODES


def run(arguments: Sequence[str]) -> int:
    """Prints the report; `--json` prints it for programs."""
    asked = parse_flags(_flags, "inspect", arguments)
    report = _report(*asked[:-1])
    if asked[-1]:
        json.dump(report, sys.stdout, indent=2)
        print()
    else:
        for name, value in _lines(report):
            print(f"{name:22}{value}")
    return 0


def _flags(
    model: Annotated[str, tyro.conf.Positional] = "demo",
    dtype: DType = "auto",
    architecture: str | None = None,
    quantization: Quantization = "none",
    kv_cache_dtype: KVCacheDType = "auto",
    block_size: int | None = None,
    json: bool = False,
) -> tuple[str, DType, str | None, Quantization, KVCacheDType, int | None, bool]:
    """Show what a model is made of, and what it takes of this machine.

    Args:
        model: A folder, a hub id `owner/name`, a config.json, or `demo`, the model in the package.
        dtype: Type of weights and activations; auto: bfloat16 on GPU and TPU, float32 on CPU.
        architecture: Read config.json as that of this architecture, whatever it names.
        quantization: How the weights are held while KV blocks are counted.
        kv_cache_dtype: Type of keys and values in KV blocks; auto: that of activations.
        block_size: Tokens a KV block; by default 16 on CPU, 64 on GPU, 128 on TPU.
        json: Print JSON.
    """
    return model, dtype, architecture, quantization, kv_cache_dtype, block_size, json


def _report(
    model: str,
    dtype: DType,
    architecture: str | None,
    quantization: Quantization,
    kv_cache_dtype: KVCacheDType,
    block_size: int | None,
) -> dict[str, Any]:
    from jaxinfer.folder_files import read_object
    from jaxinfer.model_config.registry import declared_architecture, parse_config
    from jaxinfer.models.declared import read_declared
    from jaxinfer.runner.inspection import inspect_model
    from jaxinfer.runner.platform import default_block_size, resolve_dtype

    path = Path(model).expanduser()
    if path.is_file():
        if path.suffix != ".json":
            raise ModelError(f"{model}: must be a folder, a hub id or a config.json")
        raw = read_object(path)
        config = parse_config(raw, architecture)
    else:
        from jaxinfer.build import model_folder

        folder = model_folder(EngineConfig(model, load=ModelConfig(architecture=architecture)))
        raw, config = read_object(folder / "config.json"), read_declared(folder, architecture).config
    name = architecture or declared_architecture(raw)
    config, size = config.keeping(KV_CODES[kv_cache_dtype]), block_size or default_block_size()
    sizes = inspect_model(config, resolve_dtype(dtype), quantization, size)
    return {"model": model, "architecture": name, "quantization": quantization, **sizes}


def _lines(report: dict[str, Any]) -> list[tuple[str, str]]:
    count, active = report["parameters"], report["active_parameters"]
    of_token = f", of which a token uses {_billions(active)}" if active != count else ""
    lines = [
        ("model", report["model"]),
        ("architecture", report["architecture"]),
        ("layers", ", ".join(f"{layers} of {kind}" for kind, layers in report["layers"].items())),
        ("context", f"{report['context']:,} tokens"),
        ("parameters", f"{count:,} ({_billions(count)}{of_token})"),
    ]
    lines += [(f"weights in {name}", _bytes(size)) for name, size in report["weight_bytes"].items()]
    for i, group in enumerate(report["kv_groups"]):
        window = "all tokens" if group["window"] is None else f"the last {group['window']:,} tokens"
        padding = f", {_bytes(group['padding_bytes'])} of it padding" if group["padding_bytes"] else ""
        size = f"{_bytes(group['token_bytes'])} a token in {group['dtype']}"
        kept = f"{size}{padding}; {group['layers']} layers keep {window}"
        lines.append((f"KV group {i}", kept))
    lines.append(("KV blocks that fit", _fitting(report)))
    return lines


def _fitting(report: dict[str, Any]) -> str:
    size, platform = report["block_size"], report["platform"]
    if not report["blocks"]:
        return f"none: the weights alone take more than the {_bytes(report['memory_bytes'])} of this {platform}"
    groups = ", ".join(f"{blocks:,}" for blocks in report["blocks"])
    bound = "at most on a CPU" if platform == "cpu" else "before what steps take"
    return f"{groups} of {size} tokens on this {platform}, {bound}"


def _billions(count: int) -> str:
    return f"{count / 1e9:.2f} B" if count >= 1e7 else f"{count / 1e6:.2f} M"


def _bytes(size: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} B"
