"""EngineStats of the flat names that gRPC has."""

from dataclasses import fields, replace
from typing import Any

from jaxinfer.engine.stats.counters import EngineStats
from jaxinfer.engine.stats.hosts import HostReading


def stats_of(**values: Any) -> EngineStats:
    """A reading with these values; those of hosts are tuples."""
    return with_values(EngineStats(), **values)


def with_values(stats: EngineStats, **values: Any) -> EngineStats:
    """A reading with these values instead of its own."""
    hosts = {name.removeprefix("host_"): values.pop(name) for name in list(values) if name.startswith("host_")}
    rows = [dict(zip(hosts, row, strict=True)) for row in zip(*hosts.values(), strict=True)]
    parts: dict[str, Any] = {"hosts": tuple(HostReading(**row) for row in rows) or stats.hosts}
    for part in fields(stats):
        if part.name != "hosts":
            record = getattr(stats, part.name)
            prefix = getattr(record, "rpc_prefix", "")
            names = [each.name for each in fields(record) if prefix + each.name in values]
            parts[part.name] = replace(record, **{name: values.pop(prefix + name) for name in names})
    assert not values, f"no such fields: {values}"
    return EngineStats(**parts)
