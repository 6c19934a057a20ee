"""The load of the scheduler, for gateways that spread requests."""

from typing import Any

from jaxinfer.engine.stats.counters import EngineStats
from jaxinfer.engine.types import ModelInfo


def scheduler_load(info: ModelInfo, stats: EngineStats) -> dict[str, Any]:
    """The load under the names of SGLang's SchedulerLoad, which its gateway reads by HTTP and by gRPC."""
    return {
        "num_running_reqs": stats.scheduler.running,
        "num_waiting_reqs": stats.scheduler.waiting,
        "num_total_reqs": stats.scheduler.running + stats.scheduler.waiting,
        "num_used_tokens": stats.kv.blocks_used * info.block_size,
        "max_total_num_tokens": stats.kv.blocks_total * info.block_size,
        "token_usage": stats.kv.blocks_used / max(stats.kv.blocks_total, 1),
        "cache_hit_rate": stats.admission.prefix_hits / max(stats.admission.prefix_queries, 1),
        "utilization": stats.scheduler.running / info.max_num_seqs,
        "max_running_requests": info.max_num_seqs,
    }
