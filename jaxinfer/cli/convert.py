"""`jaxinfer convert`: a model in another form, leaves as engines hold them or safetensors that others read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import tyro

from jaxinfer.cli.flags import parse_flags
from jaxinfer.config import DType, EngineConfig, ModelConfig, ParallelConfig, Quantization
from jaxinfer.parallel.asked_mesh import asked_mesh


class _Asked(NamedTuple):
    """Values of the flags. config: the model as an engine would hold it."""

    config: EngineConfig
    out: Path
    to: Literal["orbax", "safetensors"]


def run(arguments: Sequence[str]) -> int:
    """Converts, or goes on where a killed run has stopped."""
    config, out, to = parse_flags(_flags, "convert", arguments)
    mesh, load = asked_mesh(config.parallel), config.load
    from jaxinfer.build.declared import declare
    from jaxinfer.convert.conversion import Conversion, convert
    from jaxinfer.parallel.mesh import add_cpu_devices
    from jaxinfer.runner.platform.values import resolve_dtype

    add_cpu_devices(mesh.size)
    declared = declare(config)
    keep = to == "safetensors" and load.dtype == "auto"
    dtype = None if keep else resolve_dtype(load.dtype, held=declared.config.held_dtype).name
    convert(Conversion(declared.source, out, to, dtype, load.quantization, mesh), declared.config)
    print(f"{out} is ready: jaxinfer serve {out}")
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
    load = ModelConfig(
        dtype=dtype,
        revision=revision,
        architecture=architecture,
        ignore_config_keys=ignore_config_keys,
        quantization=quantization,
    )
    return _Asked(EngineConfig(model, load, parallel=ParallelConfig(mesh=mesh)), out, to)
