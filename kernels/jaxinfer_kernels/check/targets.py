"""Targets: what is compiled for, read from configs/targets, and their devices as JAX sees them without hardware."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from jaxinfer_kernels.available import unavailable
from jaxinfer_kernels.check.schedule import DUMPED

FOLDER = Path(__file__).resolve().parents[3] / "configs" / "targets"
"""Folder of the repository's targets. An installed package has none."""


class TargetError(ValueError):
    """A target that is unknown, or cannot be compiled for in this environment."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Figures of one JAX device. platform: `tpu` or `cuda`. topology: XLA's name. description: XLA's, for a GPU.

    accelerator_type: what libtpu wants to be told. host_topology, host_accelerator_type: the same of a whole host, for
    meshes. cores: tensor cores, or multiprocessors. Rates are peaks, dense;
    0 for what the device does not have. vmem_bytes: of a core. smem_bytes: of a core, or of a GPU's block.
    """

    name: str
    platform: str
    device: str
    topology: str
    source: str
    cores: int
    hbm_bytes: int
    hbm_bytes_per_second: int
    bf16_ops_per_second: int
    smem_bytes: int
    int8_ops_per_second: int = 0
    fp8_ops_per_second: int = 0
    vmem_bytes: int = 0
    accelerator_type: str = ""
    host_topology: str = ""
    host_accelerator_type: str = ""
    description: str = ""

    def variables(self, dump: Path | None = None) -> dict[str, str]:
        """Environment variables that must be set before JAX is imported. dump: where compilers tell of kernels."""
        found = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
        if self.platform == "tpu":
            found |= {
                "TPU_ACCELERATOR_TYPE": self.accelerator_type,
                "TPU_SKIP_MDS_QUERY": "1",
                "TPU_WORKER_HOSTNAMES": "localhost",
                "TPU_STDERR_LOG_LEVEL": "3",
                "TPU_MIN_LOG_LEVEL": "3",
                "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            }
        return found if dump is None else found | self._dumps(dump)

    def _dumps(self, dump: Path) -> dict[str, str]:
        if self.platform == "cuda":
            return {
                "XLA_FLAGS": f"--xla_dump_to={dump} --xla_dump_emitter_re=ptx",
                "MOSAIC_GPU_DUMP_PTX": "1",
                "MOSAIC_GPU_DUMP_TO": str(dump),
            }
        return {
            "LIBTPU_INIT_ARGS": f"--xla_jf_dump_to={dump} --xla_jf_dump_llo_text=true "
            f"--xla_jf_dump_llo_pass_label_regex={DUMPED}",
        }

    def on(self, topology: str) -> "Target":
        """Return the target with the devices of another topology, by XLA's name."""
        return replace(self, topology=topology)

    def host(self) -> "Target":
        """Return the target with all devices of a host. Raises TargetError if the host's topology is not known."""
        if not self.host_topology:
            raise TargetError(f"target {self.name!r} has no host_topology, which programs for several devices need")
        return replace(self, topology=self.host_topology, accelerator_type=self.host_accelerator_type)

    def devices(self) -> list[Any]:
        """The devices of the topology. Raises TargetError, which says what to install, where the compiler is absent."""
        from jax.experimental import topologies

        if self.platform == "cuda":
            options = {"topology": self.topology, "target_config": self.description}
        else:
            options = {"topology_name": self.topology}
        try:
            return list(topologies.get_topology_desc(platform=self.platform, **options).devices)
        except Exception as error:
            kind = "gpu" if self.platform == "cuda" else "tpu"
            needs = (f"the extra compile-{kind} gives what compiles for {self.name}", unavailable(f"mosaic_{kind}"))
            raise TargetError(f"{'; '.join(filter(None, needs))}: {error}") from error


def read_target(folder: Path, name: str) -> Target:
    """One target. Raises TargetError that names the known ones, or the wrong field."""
    file = folder / f"{name}.yaml"
    if not file.is_file():
        known = ", ".join(target_names(folder))
        raise TargetError(f"target {name!r} is unknown; {folder} has {known}")
    values = yaml.safe_load(file.read_text())
    allowed = {field.name for field in fields(Target)} - {"name", "description"}
    if unknown := set(values) - allowed:
        raise TargetError(f"{file}: unknown {', '.join(sorted(unknown))}; known are {', '.join(sorted(allowed))}")
    described = file.with_suffix(".txtpb")
    try:
        return Target(name=name, **values, description=described.read_text() if described.is_file() else "")
    except TypeError as error:
        raise TargetError(f"{file}: {error}") from error


def target_names(folder: Path) -> list[str]:
    """Names of all targets in a folder. Raises TargetError where there is none."""
    names = sorted(file.stem for file in folder.glob("*.yaml"))
    if not names:
        raise TargetError(
            f"{folder} has no targets: they lie in configs/targets of jaxinfer's repository, which an installed "
            "package does not have beside it. --folder configs/targets names them, or pip install -e . finds them"
        )
    return names
