"""The hosts of one engine, as its process joins them."""

import contextlib
import logging
import math
import os
import threading
from collections.abc import Iterator
from dataclasses import fields

from jaxinfer.checkpoint.fingerprint import fingerprint
from jaxinfer.config import EngineConfig, HostsConfig
from jaxinfer.config_tree import settings
from jaxinfer.hosts.access import hosts_key
from jaxinfer.hosts.facts import Facts, installed_versions
from jaxinfer.hosts.following import HostFollower
from jaxinfer.hosts.launch import HostPlace, find_place
from jaxinfer.hosts.leading import HostLeader
from jaxinfer.hosts.team import ALONE, Team
from jaxinfer.hosts.timing import HostTiming
from jaxinfer.parallel.asked_mesh import asked_mesh
from jaxinfer.parallel.mesh_file import mesh_text
from jaxinfer.processes.team import Leader, TeamMember
from jaxinfer.serving.config import ServerConfig

log = logging.getLogger(__name__)

_OWN = ("model", "tokenizer", "mesh", "compile_cache_dir", "disable_log_stats", *(f.name for f in fields(HostsConfig)))
"""Settings in which hosts may differ: files have names of their own on each, and what is in them is a fact."""
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
_TELL_SECONDS = 1.0


def timing_of(config: EngineConfig, options: ServerConfig) -> HostTiming:
    """Return how long hosts wait for each other; the limits are those between the processes of one host."""
    step = config.scheduler.step_timeout
    if not options.heartbeat_seconds:
        return HostTiming(silence=math.inf, step=step)
    return HostTiming(options.heartbeat_seconds, options.silence_seconds, step)


def place_of(config: EngineConfig) -> HostPlace | None:
    """Return the place of this host; None for an engine on one host. Raises ParameterError."""
    asked = config.hosts
    return find_place(asked.coordinator, asked.num_hosts, asked.host_id, os.environ)


@contextlib.contextmanager
def leading_team(config: EngineConfig, timing: HostTiming) -> Iterator[Team]:
    """Host 0 with all others, which have joined; or one host alone. The process ends where a host is lost."""
    place = place_of(config)
    if place is None:
        yield ALONE
        return
    key = hosts_key(config.hosts.hosts_key, os.environ)
    with HostLeader(place.num_hosts, first_facts(config), lost=_end, key=key, timing=timing) as hosts:
        hosts.listen(place.stream)
        log.info("host 0 of %d awaits the others at %s", place.num_hosts, place.stream)
        hosts.wait_joined()
        yield Leader(place, hosts, asked_mesh(config.parallel).size // place.num_hosts)


@contextlib.contextmanager
def following_team(config: EngineConfig, timing: HostTiming) -> Iterator[tuple[TeamMember, HostFollower]]:
    """Another host, which has joined host 0. The process ends where a host is lost."""
    place = place_of(config)
    assert place is not None
    key, facts = hosts_key(config.hosts.hosts_key, os.environ), first_facts(config)
    with HostFollower(place.num_hosts, place.host_id, facts, lost=_end, key=key, timing=timing) as stream:
        stream.join(place.stream)
        yield TeamMember(place, stream), stream


def first_facts(config: EngineConfig) -> Facts:
    """Return the facts that must agree on all hosts before anything is loaded."""
    from jaxinfer.build import model_folder

    own = {name: value for name, value in settings(config) if name not in _OWN}
    return {
        **installed_versions(),
        **{name: str(value) for name, value in own.items()},
        "mesh": mesh_text(asked_mesh(config.parallel)),
        "weights": fingerprint(model_folder(config)),
        **{name: os.environ.get(name, "") for name in _VARIABLES},
    }


def _end(reason: str) -> None:
    # Standard error may be a pipe that nobody reads, and a thread that writes there holds a lock of logging's.
    telling = threading.Thread(target=log.error, args=("%s; this host ends", reason), daemon=True)
    telling.start()
    telling.join(_TELL_SECONDS)
    os._exit(1)
