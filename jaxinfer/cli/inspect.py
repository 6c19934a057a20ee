"""`jaxinfer inspect`: what a model is made of, and what it takes of this machine or of another. Reads no weights."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import tyro

from jaxinfer.cli.flags import parse_flags
from jaxinfer.cli.json_output import as_json, show_json
from jaxinfer.config import CacheConfig, DType, EngineConfig, KVCacheDType, ModelConfig, ParallelConfig, Quantization
from jaxinfer.errors import ParameterError
from jaxinfer.parallel.asked_mesh import asked_mesh, served_mesh
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.rules import AXES
from jaxinfer.quantization.kv import KV_CODES

if TYPE_CHECKING:
    from jaxinfer.runner.fit.sizes import Device

Platform = Literal["auto", "cpu", "gpu", "tpu"]


class _Asked(NamedTuple):
    """Values of the flags. config: the model as an engine would hold it."""

    config: EngineConfig
    block_size: int | None
    platform: Platform
    device_memory: float | None
    gpu_memory_utilization: float
    max_model_len: int | None
    json: bool


def run(arguments: Sequence[str]) -> int:
    """Prints the report; `--json` prints it for programs."""
    asked: _Asked = parse_flags(_flags, "inspect", arguments)
    report = _report(asked)
    if asked.json:
        show_json(report)
    else:
        for name, value in _lines(report):
            print(f"{name:21} {value}")
    return 0


def _flags(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[MODEL]")] = "demo",
    dtype: DType = "auto",
    architecture: str | None = None,
    ignore_config_keys: tuple[str, ...] = (),
    quantization: Quantization = "none",
    kv_cache_dtype: KVCacheDType = "auto",
    block_size: int | None = None,
    platform: Platform = "auto",
    device_memory: float | None = None,
    gpu_memory_utilization: float = 0.9,
    max_model_len: int | None = None,
    mesh: str | None = None,
    pipeline_layers: str | None = None,
    json: bool = False,
) -> _Asked:
    """Show what a model is made of, and what it takes of this machine or of another.

    Args:
        model: A folder, a hub id `owner/name`, a config.json, or `demo`, the model in the package.
        dtype: Type of weights and activations; auto: bfloat16 on GPU and TPU, float32 on CPU.
        architecture: Read config.json as that of this architecture, whatever it names.
        ignore_config_keys: Unknown keys of config.json that are ignored, whatever their names suggest.
        quantization: How the weights are held while KV blocks are counted.
        kv_cache_dtype: Type of keys and values in KV blocks; auto: that of activations.
        block_size: Tokens a KV block; by default 16 on CPU, 64 on GPU, 128 on TPU.
        platform: Of the device that is to hold the model; auto: this machine's.
        device_memory: GiB of that device; by default of this machine's first.
        gpu_memory_utilization: Share of the device's memory that everything together may take.
        max_model_len: Count the sequences of so many tokens that fit at once.
        mesh: A mesh by name, as tp4, or a YAML file: sizes are those of one of its devices, which need not be here.
        pipeline_layers: Layers of each of the mesh's stages, as 0-14,15-31; by default every stage's step takes about
            as long.
        json: Print JSON.
    """
    load = ModelConfig(
        dtype=dtype,
        architecture=architecture,
        ignore_config_keys=ignore_config_keys,
        quantization=quantization,
    )
    parallel = ParallelConfig(mesh=mesh, pipeline_layers=pipeline_layers)
    config = EngineConfig(model, load, CacheConfig(kv_cache_dtype=kv_cache_dtype), parallel=parallel)
    return _Asked(config, block_size, platform, device_memory, gpu_memory_utilization, max_model_len, json)


def _report(asked: _Asked) -> dict[str, Any]:
    from jaxinfer.build.declared import declare_alone
    from jaxinfer.build.inspection import inspect_model
    from jaxinfer.runner.platform.values import default_block_size, resolve_dtype

    config, declared = asked.config, declare_alone(asked.config)
    mesh, device = asked_mesh(config.parallel), _device(asked)
    dtype = resolve_dtype(config.load.dtype, device.platform, declared.config.held_dtype)
    decoder = declared.config.keeping(KV_CODES[config.cache.kv_cache_dtype])
    block_size = asked.block_size or default_block_size(device.platform)
    sizes = inspect_model(config, decoder, mesh, device, dtype, block_size, asked.max_model_len)
    told = {"model": config.model, "architecture": declared.architecture, "quantization": config.load.quantization}
    return {**told, "mesh": _mesh(mesh, config.parallel), **as_json(sizes)}


def _mesh(mesh: MeshConfig, parallel: ParallelConfig) -> dict[str, Any]:
    refused = None
    try:
        served_mesh(parallel, mesh.hosts)
    except ParameterError as error:
        refused = error.message
    return {
        "axes": dict(zip(AXES, mesh.shape, strict=True)),
        "devices": mesh.size,
        "hosts": mesh.hosts,
        "topology": None if mesh.topology is None else str(mesh.topology),
        "rules": dataclasses.asdict(mesh.rules),
        "refused": refused,
    }


def _device(asked: _Asked) -> "Device":
    from jaxinfer.build.inspection import usable_device
    from jaxinfer.runner.fit.sizes import Device

    for name in ("device_memory", "gpu_memory_utilization", "max_model_len"):
        value = getattr(asked, name)
        if value is not None and not value > 0:
            raise ParameterError(name, f"must be above 0, not {value}")
    here = usable_device(asked.gpu_memory_utilization)
    platform = here.platform if asked.platform == "auto" else asked.platform
    if asked.device_memory is not None:
        return Device(platform, int(asked.device_memory * 2**30 * asked.gpu_memory_utilization))
    if platform not in (here.platform, "cpu"):
        raise ParameterError("device_memory", f"must be given for a {platform}, which is not here")
    if asked.max_model_len is not None and (platform == "cpu" or here.memory is None):
        raise ParameterError("device_memory", "must be given to count sequences on a CPU")
    return Device(platform, None if platform == "cpu" else here.memory)


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
    lines += _mesh_lines(report["mesh"])
    if stages := report["stages"]:
        each = ", ".join(f"{_span(stage)} {_bytes(stage['weight_bytes'])}" for stage in stages)
        lines.append(("stages", f"layers {each}; what follows is of the one that holds most"))
    lines += [(f"weights in {name}", _bytes(size)) for name, size in report["weight_bytes"].items()]
    for i, group in enumerate(report["kv_groups"]):
        window = "all tokens" if group["window"] is None else f"the last {group['window']:,} tokens"
        padding = f", {_bytes(group['padding_bytes'])} of it padding" if group["padding_bytes"] else ""
        size = f"{_bytes(group['token_bytes'])} a token in {group['dtype']}"
        kept = f"{size}{padding}; {group['layers']} layers keep {window}"
        lines.append((f"KV group {i}", kept))
    lines.append(("KV blocks that fit", _fitting(report)))
    if report["sequences"] is not None:
        lines.append(("sequences that fit", f"{report['sequences']:,} of {report['length']:,} tokens each"))
    return lines


def _span(stage: dict[str, int]) -> str:
    first, last = stage["first"], stage["last"]
    return f"{first}" if first == last else f"{first}-{last}"


def _mesh_lines(mesh: dict[str, Any]) -> list[tuple[str, str]]:
    if mesh["devices"] == 1:
        return []
    axes = ", ".join(f"{name}={size}" for name, size in mesh["axes"].items() if size > 1)
    kind = "" if mesh["topology"] is None else f" of {mesh['topology']}"
    hosts = "" if mesh["hosts"] == 1 else f" on {mesh['hosts']} hosts"
    rules = {axis: [name for name in names if mesh["axes"][name] > 1] for axis, names in mesh["rules"].items()}
    split = ", ".join(f"{axis} over {' and '.join(names)}" for axis, names in rules.items() if names)
    lines = [("mesh", f"{axes}: {mesh['devices']} devices{kind}{hosts}; what follows is of one")]
    lines += [("split", split)] if split else []
    return lines if mesh["refused"] is None else [*lines, ("not served", mesh["refused"])]


def _fitting(report: dict[str, Any]) -> str:
    size, platform = report["block_size"], report["platform"]
    if not report["blocks"]:
        return f"none: the weights alone take more than {_bytes(report['memory_bytes'])} of a {platform}"
    groups = ", ".join(f"{blocks:,}" for blocks in report["blocks"])
    if report["memory_bytes"] is None:
        return f"{groups} of {size} tokens on a CPU, at most"
    return f"{groups} of {size} tokens in {_bytes(report['memory_bytes'])} of a {platform}, before what steps take"


def _billions(count: int) -> str:
    return f"{count / 1e9:.2f} B" if count >= 1e7 else f"{count / 1e6:.2f} M"


def _bytes(size: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} B"
