"""Asked: what an engine is built from. No jax."""

from typing import NamedTuple

from jaxinfer.build.progress import BuildProgress
from jaxinfer.config import EngineConfig
from jaxinfer.hosts.team import ALONE, Team
from jaxinfer.parallel.mesh_config import MeshConfig


class StartRequest(NamedTuple):
    """Settings, and the process that builds an engine of them.

    mesh: None if the engine chooses it. leads: this host schedules.
    """

    config: EngineConfig
    mesh: MeshConfig | None
    team: Team = ALONE
    progress: BuildProgress | None = None
    leads: bool = True
