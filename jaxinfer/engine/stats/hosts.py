"""Host 0's knowledge of the hosts of its engine."""

from dataclasses import dataclass
from typing import ClassVar

from jaxinfer.engine.series import gauge


@dataclass(frozen=True)
class HostReading:
    """One host. devices: those of the engine's that it has. calls_behind: calls of host 0 that it has not performed
    yet. step_skew: seconds by which it collected a step later than host 0, of the last step that both have collected.
    heartbeat_age: seconds since it was heard."""

    devices: int = gauge("jaxinfer:host_devices", "Devices of the engine that each host has.", "host")
    calls_behind: int = gauge(
        "jaxinfer:host_calls_behind", "Calls of host 0 that each host has not performed yet.", "host"
    )
    step_skew: float = gauge(
        "jaxinfer:host_step_skew_seconds", "By how much each host collected the last step later than host 0.", "host"
    )
    heartbeat_age: float = gauge("jaxinfer:host_heartbeat_age_seconds", "Since each host was heard.", "host")
    rpc_prefix: ClassVar = "host_"
