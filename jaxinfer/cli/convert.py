"""`jaxinfer convert`: a model in another form, leaves as engines hold them or safetensors that others read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import tyro

from jaxinfer.cli.flags import parse_flags
from jaxinfer.config import DType, EngineConfig, ModelConfig, ParallelConfig, Quantization
from jaxinfer.parallel.asked_mesh import asked_mesh


class _Asked(NamedTuple):
    """Values of the flags."""

    model: str
    out: Path
    to: Literal["orbax", "safetensors"]
    dtype: DType
    quantization: Quantization
    mesh: str | None
    revision: str | None
    architecture: str | None
    ignore_config_keys: tuple[str, ...]


def run(arguments: Sequence[str]) -> int:
    """Converts, or goes on where a killed run has stopped."""
    asked: _Asked = parse_flags(_flags, "convert", arguments)
    mesh = asked_mesh(ParallelConfig(mesh=asked.mesh))
    from jaxinfer.build.declared import declare
    from jaxinfer.convert.conversion import Conversion, convert
    from jaxinfer.parallel.mesh import add_cpu_devices
    from jaxinfer.runner.platform import resolve_dtype

    add_cpu_devices(mesh.size)
    load = ModelConfig(
        revision=asked.revision, architecture=asked.architecture, ignore_config_keys=asked.ignore_config_keys
    )
    declared = declare(EngineConfig(asked.model, load))
    keep = asked.to == "safetensors" and asked.dtype == "auto"
    dtype = None if keep else resolve_dtype(asked.dtype, held=declared.config.held_dtype).name
    convert(Conversion(declared.source, asked.out, asked.to, dtype, asked.quantization, mesh), declared.config)
    print(f"{asked.out} is ready: jaxinfer serve {asked.out}")
    return 0


def _flags(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    to: Literal["orbax", "safetensors"],
    dtype: DType = "auto",
    quantization: Quantization = "none",
    mesh: str | None = None,
    revision: str | None = None,
    architecture: str | None = None,
    ignore_config_keys: tuple[str, ...] = (),
) -> _Asked:
    """Write a model in another form. A run that was killed goes on when it is started again.

    Args:
        model: A folder, a hub id `owner/name`, or `demo`, the model in the package.
        out: The folder to make. Until it is whole it is called OUT.partial and cannot be loaded.
        to: orbax: weights fused and quantised as engines hold them, for any mesh. safetensors: as on
            the Hub, quantised as compressed-tensors.
        dtype: Type of what is not quantised. auto: for orbax that of `serve` on this machine, bfloat16 on GPU and TPU,
            float32 on CPU; safetensors keep their own.
        quantization: Hold the weights in fewer bits, as `serve` would.
        mesh: A mesh by name, as tp4, or a YAML file, whose shards orbax's chunks are cut for; any other fits, too.
        revision: Branch, tag or commit of a hub model.
        architecture: Read config.json as that of this architecture, whatever it names.
        ignore_config_keys: Unknown keys of config.json that are ignored, whatever their names suggest.
    """
    return _Asked(model, out, to, dtype, quantization, mesh, revision, architecture, ignore_config_keys)
